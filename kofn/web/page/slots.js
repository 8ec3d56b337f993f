// The slots of the iteration in progress: a column for each block, a row for each worker.

import { FONT, colour, setText, surface } from './theme.js';

const LEFT = 22, TOP = 24, CELL_MOST = 26, HEIGHT_MOST = 190;

export class Slots {
  constructor(canvas, words) {
    this.canvas = canvas;
    this.words = words;
  }

  draw(frame, job, target) {
    const { slots } = frame;
    const words = slots ? summary(slots, frame.workers.length) : absence(job, target);
    setText(this.words, words);
    this.canvas.setAttribute('aria-label', words);
    const rows = frame.workers.length;
    this.canvas.style.height = `${slots?.length ? Math.min(HEIGHT_MOST, TOP + rows * CELL_MOST) : 0}px`;
    const drawn = surface(this.canvas);
    if (!drawn || !slots?.length) return;
    const { context, width, height } = drawn;
    const cellWidth = Math.min(CELL_MOST, (width - LEFT) / slots.length);
    const cellHeight = Math.min(CELL_MOST, (height - TOP) / rows);
    context.font = FONT;
    this.labels(context, rows, cellHeight);
    slots.forEach(([, block, closed, present], column) => {
      const x = LEFT + column * cellWidth;
      head(context, x, cellWidth, block, closed, column);
      for (let rank = 0; rank < rows; rank += 1) {
        cell(context, x, TOP + rank * cellHeight, cellWidth, cellHeight, present[rank] === '1', closed);
      }
    });
  }

  labels(context, rows, cellHeight) {
    context.fillStyle = colour('muted');
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const step = Math.ceil(11 / cellHeight);
    for (let rank = 0; rank < rows; rank += step) context.fillText(rank, LEFT - 7, TOP + (rank + 0.5) * cellHeight);
  }
}

// A closed slot has a bar on top, an open one a gap in it.
function head(context, x, width, block, closed, column) {
  context.fillStyle = colour(closed ? 'ink' : 'faint');
  if (closed) context.fillRect(x + 1, TOP - 6, width - 2, 3);
  else { context.fillRect(x + 1, TOP - 6, 3, 3); context.fillRect(x + width - 4, TOP - 6, 3, 3); }
  if (column % Math.ceil(18 / width) === 0) {
    context.fillStyle = colour('muted');
    context.textAlign = 'center';
    context.textBaseline = 'alphabetic';
    context.fillText(block, x + width / 2, TOP - 11);
  }
}

function cell(context, x, y, width, height, present, closed) {
  const [left, top, w, h] = [x + 1.5, y + 1.5, width - 3, height - 3];
  if (present) {
    context.fillStyle = colour('accent');
    context.beginPath();
    context.roundRect(left, top, w, h, 2);
    context.fill();
  } else if (closed) {
    context.strokeStyle = colour('warn');
    context.lineWidth = 1.5;
    const inset = Math.min(w, h) * 0.28;
    context.beginPath();
    context.moveTo(left + inset, top + inset); context.lineTo(left + w - inset, top + h - inset);
    context.moveTo(left + w - inset, top + inset); context.lineTo(left + inset, top + h - inset);
    context.stroke();
  } else {
    context.strokeStyle = colour('faint');
    context.lineWidth = 1;
    context.strokeRect(left + 0.5, top + 0.5, w - 1, h - 1);
  }
}

export function summary(slots, workers) {
  if (!slots.length) return 'No slot of the iteration in progress holds a block.';
  const closed = slots.filter(slot => slot[2]).length;
  const missing = Array.from({ length: workers }, (_, rank) => rank).filter(rank => slots.some(slot => slot[3][rank] === '0'));
  const iterations = [...new Set(slots.map(slot => slot[0]))];
  const which = iterations.length === 1 ? `Iteration ${iterations[0]}` : `Iterations ${Math.min(...iterations)} to ${Math.max(...iterations)}`;
  const who = missing.length ? `Not in every slot: worker${missing.length > 1 ? 's' : ''} ${missing.join(', ')}.` : 'Nobody is missing.';
  return `${which}: ${closed} of ${slots.length} slots closed. ${who}`;
}

function absence(job, target) {
  if (!target) return 'A simulation has no switch to look into.';
  if (job.collective !== 'switch') return `No slots: the sums are made by ${job.collective}.`;
  if (target === 'bmv2') return 'BMv2 does not let its slots be read.';
  return 'Slots are sampled while the live page of a run is open.';
}
