// The page's place in the run: a trial, a job and a time; live, playing or paused; and its controls.

const ICONS = {
  play: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M3 1.5v11l9.5-5.5z"/></svg>',
  pause: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M2.5 1.5h3v11h-3zM8.5 1.5h3v11h-3z"/></svg>',
  back: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M2 2h2v10H2zM12 2v10L5 7z"/></svg>',
  forth: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M10 2h2v10h-2zM2 2v10l7-5z"/></svg>',
};

const GLYPHS = { k: '◆', event: '▲', straggler: '●', fault: '✕', worker: '■', controller: '○' };
export const glyph = kind => GLYPHS[kind] ?? '·';

const find = id => document.getElementById(id);

export class Player {
  // `changed` is called after every change of place.
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
    this.trial = 0;
    this.job = store.header.jobs[0].id;
    this.time = 0;
    this.mode = 'paused'; // or 'playing', 'live'
    this.growing = false; // whether more frames come
    this.marked = -1;
    find('back').innerHTML = ICONS.back;
    find('forth').innerHTML = ICONS.forth;
    find('play').addEventListener('click', () => this.toggle());
    find('back').addEventListener('click', () => this.step(-1));
    find('forth').addEventListener('click', () => this.step(1));
    find('live').addEventListener('click', () => this.follow());
    find('seek').addEventListener('input', event => this.seek(Number(event.target.value)));
    addEventListener('keydown', event => this.key(event));
    this.trials();
    this.jobs();
  }

  get track() { return this.store.track(this.trial, this.job); }
  get index() { return this.track.at(this.time); }
  get frame() { return this.track.frames[this.index]; }

  trials() {
    this.store.header.trials.forEach((objective, trial) => {
      const label = document.createElement('label');
      const input = Object.assign(document.createElement('input'), { type: 'radio', name: 'trial', value: trial });
      input.addEventListener('change', () => this.choose(trial));
      const words = document.createElement('span');
      words.textContent = objective;
      label.append(input, words);
      find('trials').append(label);
    });
  }

  jobs() {
    const { jobs } = this.store.header;
    find('job-choice').hidden = jobs.length < 2;
    for (const job of jobs) find('job').append(new Option(job.id, job.id));
    find('job').addEventListener('change', event => { this.job = Number(event.target.value); this.moved(); });
  }

  // Takes new frames.
  grown(track) {
    if (this.mode === 'live') {
      this.trial = track.trial;
      this.time = this.track.length_s;
    }
    this.moved();
  }

  follow() {
    this.mode = 'live';
    this.trial = Math.max(0, this.store.tracks.findLastIndex(trial => trial.get(this.job).frames.length > 0));
    this.time = this.track.length_s;
    this.moved();
  }

  ended() {
    this.growing = false;
    if (this.mode === 'live') this.mode = 'paused';
    this.moved();
  }

  choose(trial) {
    this.trial = trial;
    this.time = 0;
    if (this.mode === 'live') this.mode = 'playing';
    this.moved();
  }

  toggle() {
    const last = this.trial === this.store.tracks.length - 1;
    if (this.mode !== 'paused') this.mode = 'paused';
    else {
      if (last && this.time >= this.track.length_s) this.time = 0;
      this.mode = 'playing';
    }
    this.moved();
  }

  seek(time) {
    if (this.mode === 'live') this.mode = 'paused';
    this.time = Math.min(Math.max(0, time), this.track.length_s);
    this.moved();
  }

  step(frames) {
    this.mode = 'paused';
    const { times } = this.track;
    this.seek(times[Math.min(Math.max(0, this.index + frames), times.length - 1)] ?? 0);
  }

  // Advances by so much real time.
  advance(passed_s) {
    if (this.mode !== 'playing') return false;
    this.time += passed_s * Number(find('speed').value);
    if (this.time >= this.track.length_s) this.atEnd();
    this.moved();
    return true;
  }

  atEnd() {
    const next = this.store.tracks[this.trial + 1]?.get(this.job);
    if (next?.frames.length) {
      this.trial += 1;
      this.time = 0;
    } else {
      this.time = this.track.length_s;
      this.mode = this.growing ? 'live' : 'paused';
    }
  }

  key(event) {
    if (event.target !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { ' ': () => this.toggle(), ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1) }[event.key];
    if (action) { event.preventDefault(); action(); }
  }

  moved() {
    const { track } = this;
    const seek = find('seek');
    seek.max = track.length_s;
    seek.value = this.time;
    seek.setAttribute('aria-valuetext', `${this.time.toFixed(1)} of ${track.length_s.toFixed(1)} seconds`);
    find('clock').textContent = `${this.time.toFixed(1)} / ${track.length_s.toFixed(1)} s`;
    const going = this.mode !== 'paused';
    const play = find('play');
    if (play.dataset.icon !== String(going)) {
      play.dataset.icon = going;
      play.innerHTML = going ? ICONS.pause : ICONS.play;
      play.setAttribute('aria-label', going ? 'Pause' : 'Play');
    }
    find('live').hidden = !this.growing;
    find('live').setAttribute('aria-pressed', this.mode === 'live');
    document.querySelectorAll('#trials input').forEach((input, trial) => {
      input.checked = trial === this.trial;
      input.disabled = !this.store.track(trial, this.job).frames.length;
    });
    this.marks();
    this.changed();
  }

  marks() {
    const { events, length_s, frames, trial } = this.track;
    const state = `${trial}/${this.job}/${events.length}/${frames.length}`;
    if (state === this.marked) return;
    this.marked = state;
    find('marks').replaceChildren(...events.map(event => {
      const mark = document.createElement('span');
      mark.textContent = glyph(event.kind);
      mark.style.left = `${100 * event.time_s / (length_s || 1)}%`;
      return mark;
    }));
  }
}
