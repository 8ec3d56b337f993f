// A row for each worker: its phase, its latest iterations, and its blocking time.

import { FONT, colour, milliseconds, percent, setText, surface } from './theme.js';

const LOW_MS = 0.3, HIGH_MS = 1000;

export class Workers {
  constructor(table, job) {
    this.body = table.tBodies[0];
    this.axis = table.querySelector('#axis');
    this.body.replaceChildren();
    this.rows = Array.from({ length: job.workers }, (_, rank) => this.row(rank));
  }

  row(rank) {
    const line = this.body.insertRow();
    const head = document.createElement('th');
    head.scope = 'row';
    head.textContent = rank;
    line.append(head);
    const cell = (name, ...classes) => Object.assign(line.insertCell(), { className: [name, ...classes].join(' ') });
    const canvas = place => {
      const drawing = document.createElement('canvas');
      drawing.setAttribute('role', 'img');
      place.append(drawing);
      return drawing;
    };
    return {
      head, phase: cell('phase-words'), lane: canvas(cell('lane', 'wide')), forest: canvas(cell('forest', 'wide')),
      lambda: cell('lambda', 'number'), injected: cell('injected', 'number'), late: cell('late', 'number'),
      share: cell('share', 'number'),
    };
  }

  // `window_s` before the frame's time are drawn.
  draw(track, index, window_s) {
    const frame = track.frames[index];
    const stripes = hatching();
    const spans = spansOf(track, index, window_s);
    frame.workers.forEach((worker, rank) => {
      const row = this.rows[rank];
      setText(row.phase, phaseWords(worker));
      setText(row.lambda, worker.lambda_ms === null ? '–'
        : `${milliseconds(worker.lambda_ms)} (${milliseconds(worker.low_ms)} to ${worker.high_ms === null ? '∞' : milliseconds(worker.high_ms)})`);
      setText(row.injected, milliseconds(worker.injected_ms));
      setText(row.late, (worker.late_share ? `late ${percent(worker.late_share)}` : 'in time') + (worker.link ? ', slow link' : ''));
      row.late.title = worker.link;
      row.late.classList.toggle('late-words', worker.late_share > 0.5);
      setText(row.share, percent(worker.share));
      lane(row.lane, spans[rank], frame.time_s, window_s, stripes);
      forest(row.forest, worker);
    });
    axis(this.axis);
  }
}

function phaseWords(worker) {
  return ['training', 'joining', 'attached'].includes(worker.state) ? worker.phase || '–' : worker.state;
}

// Each worker's spans in the window, also those that end a little after it.
function spansOf(track, index, window_s) {
  const now = track.times[index];
  const spans = track.frames[index].workers.map(() => []);
  for (let at = Math.min(index + 5, track.frames.length - 1); at >= 0 && track.times[at] > now - window_s; at -= 1) {
    for (const worker of track.frames[at].workers) {
      for (const span of worker.spans) if (span[1] < now && span[5] > now - window_s) spans[worker.rank].push(span);
    }
  }
  return spans;
}

function hatching() {
  const tile = new OffscreenCanvas(6, 6);
  const context = tile.getContext('2d');
  context.fillStyle = colour('warn-soft');
  context.fillRect(0, 0, 6, 6);
  context.strokeStyle = colour('warn');
  context.lineWidth = 1.6;
  for (const shift of [-6, 0, 6]) {
    context.beginPath();
    context.moveTo(shift, 6);
    context.lineTo(shift + 6, 0);
    context.stroke();
  }
  return tile;
}

function lane(canvas, spans, now, window_s, stripes) {
  const drawn = surface(canvas);
  if (!drawn) return;
  const { context, width, height } = drawn;
  const x = time => Math.max(0, width * (1 - (now - Math.min(time, now)) / window_s));
  const top = 6, bar = height - 9;
  const pattern = context.createPattern(stripes, 'repeat');
  const parts = [[1, 2, colour('accent-soft')], [2, 3, pattern], [3, 4, colour('accent')]];
  for (const span of spans) {
    for (const [from, to, fill] of parts) {
      context.fillStyle = fill;
      const [left, right] = [x(span[from]), x(span[to])];
      if (right > left) context.fillRect(left, top, Math.max(0.75, right - left), bar);
    }
    const [left, right] = [x(span[4]), x(span[5])];
    context.strokeStyle = colour('muted');
    context.lineWidth = 1;
    if (right - left > 1) context.strokeRect(left + 0.5, top + 0.5, right - left - 1, bar - 1);
    if (span[6] && span[5] <= now) {
      context.fillStyle = colour('warn');
      context.beginPath();
      context.moveTo(right - 3.5, 0); context.lineTo(right + 3.5, 0); context.lineTo(right, 5);
      context.fill();
    }
  }
  context.fillStyle = colour('line');
  context.fillRect(0, height - 1, width, 1);
  canvas.setAttribute('aria-label', `${spans.length} iterations, ${spans.filter(span => span[6]).length} of them late`);
}

const place = (width, ms) => 8 + (width - 16) * Math.log(Math.min(HIGH_MS, Math.max(LOW_MS, ms)) / LOW_MS) / Math.log(HIGH_MS / LOW_MS);

function forest(canvas, worker) {
  const drawn = surface(canvas);
  if (!drawn) return;
  const { context, width, height } = drawn;
  const middle = height / 2;
  context.fillStyle = colour('line');
  for (const ms of [1, 10, 100]) context.fillRect(Math.round(place(width, ms)), 0, 1, height);
  canvas.setAttribute('aria-label', worker.lambda_ms === null ? 'no estimate yet'
    : `estimate ${milliseconds(worker.lambda_ms)} ms, injected ${milliseconds(worker.injected_ms)} ms`);
  context.strokeStyle = context.fillStyle = colour('accent');
  if (worker.lambda_ms !== null) {
    const [low, high] = [place(width, worker.low_ms), worker.high_ms === null ? width : place(width, worker.high_ms)];
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(low, middle); context.lineTo(high, middle);
    context.moveTo(low, middle - 4); context.lineTo(low, middle + 4);
    if (worker.high_ms !== null) { context.moveTo(high, middle - 4); context.lineTo(high, middle + 4); }
    context.stroke();
    context.beginPath();
    context.arc(place(width, worker.lambda_ms), middle, 4, 0, 2 * Math.PI);
    context.fill();
  }
  if (worker.injected_ms !== null) {
    const x = place(width, worker.injected_ms);
    context.strokeStyle = colour('ink');
    context.fillStyle = colour('panel');
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, middle - 6); context.lineTo(x + 6, middle); context.lineTo(x, middle + 6); context.lineTo(x - 6, middle);
    context.closePath();
    context.globalAlpha = 0.75;
    context.fill();
    context.globalAlpha = 1;
    context.stroke();
  }
}

function axis(canvas) {
  const drawn = surface(canvas);
  if (!drawn) return;
  drawn.context.font = FONT;
  drawn.context.fillStyle = colour('muted');
  drawn.context.textAlign = 'center';
  for (const ms of [1, 10, 100]) drawn.context.fillText(`${ms} ms`, place(drawn.width, ms), 12);
}
