// Events up to the time shown, the newest first.

import { glyph } from './player.js';

const SHOWN = 200;

export class Events {
  constructor(list) {
    this.list = list;
    this.key = '';
  }

  draw(track, index) {
    const { events: count } = track.ends[index];
    const key = `${track.trial}/${track.job.id}/${count}`;
    if (key === this.key) return;
    this.key = key;
    const events = track.events.slice(Math.max(0, count - SHOWN), count).reverse();
    this.list.replaceChildren(...(events.length ? events.map(item) : [empty()]));
  }
}

function item(event) {
  const line = document.createElement('li');
  line.className = event.kind;
  for (const [name, text] of [['glyph', glyph(event.kind)], ['time', `${event.time_s.toFixed(1)} s`], ['words', event.words]]) {
    const part = document.createElement('span');
    part.className = name;
    part.textContent = text;
    line.append(part);
  }
  line.querySelector('.glyph').setAttribute('aria-label', event.kind);
  return line;
}

function empty() {
  const line = document.createElement('li');
  line.className = 'empty';
  line.textContent = 'Nothing has happened yet.';
  return line;
}
