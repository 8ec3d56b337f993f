// Controller, switch or tree of switches, and workers, with the traffic on each link.

import { number, setText, svg } from './theme.js';

const HEIGHT = 256, SWITCH_Y = 74, WORKER_Y = 188, SWITCH_HEIGHT = 36, WORKER_HEIGHT = 44;
const LEAF_Y = 166, LEVEL = 92; // a tree's leaves, and how much lower its workers are

export class Topology {
  constructor(element, job) {
    this.element = element;
    this.job = job;
    this.offsets = Array.from({ length: job.workers + job.leaves.length }, () => [0, 0]);
    this.workerY = WORKER_Y + (job.leaves.length ? LEVEL : 0);
    element.style.height = `${this.height = HEIGHT + this.workerY - WORKER_Y}px`;
    new ResizeObserver(() => this.layout()).observe(element);
    this.layout();
  }

  layout() {
    const width = this.element.clientWidth || 700;
    if (width === this.width) return;
    this.width = width;
    const { element, job } = this;
    element.replaceChildren();
    element.setAttribute('viewBox', `0 0 ${width} ${this.height}`);
    const middle = width / 2, spacing = width / job.workers;
    this.detail = spacing >= 74 ? 'full' : 'short';
    this.wide = spacing >= 112;
    const half = Math.min(width / 2 - 8, Math.max(110, Math.min(260, width * 0.3)));
    const box = Math.min(Math.max(spacing - 8, 0.6 * spacing), 112);
    svg(element, 'path', { class: 'management', d: `M${middle} 34V${SWITCH_Y}` });
    svg(element, 'rect', { class: 'box', x: middle - 62, y: 4, width: 124, height: 30, rx: 6 });
    svg(element, 'text', { x: middle, y: 23 }, 'controller');
    svg(element, 'text', { x: middle + 10, y: 59, class: 'small beside' }, 'sets k');
    const racks = job.leaves.length || 1, each = job.workers / racks, rack = width / racks;
    const leaf = job.leaves.length ? Math.min(rack / 2 - 6, half) : half;
    const topY = job.leaves.length ? LEAF_Y : SWITCH_Y;
    const spread = (at, count, reach) => (count > 1 ? 2 * at / (count - 1) - 1 : 0) * reach;
    this.links = Array.from({ length: job.workers }, (_, rank) => {
      const centre = rack * (Math.floor(rank / each) + 0.5);
      const top = centre + spread(rank % each, each, Math.max(0, leaf - 26));
      return this.link(spacing * (rank + 0.5), this.workerY, top, topY, Math.min(7, spacing / 5));
    });
    job.leaves.forEach((_, number) => {
      const x = rack * (number + 0.5);
      this.links.push(this.link(x, LEAF_Y, middle + spread(number, racks, half - 26), SWITCH_Y, Math.min(7, rack / 5)));
      svg(element, 'rect', { class: 'box', x: x - leaf, y: LEAF_Y, width: 2 * leaf, height: SWITCH_HEIGHT, rx: 6 });
      svg(element, 'text', { x, y: LEAF_Y + 23 }, leaf > 30 ? `leaf ${number}` : `${number}`);
    });
    svg(element, 'rect', { class: 'box', x: middle - half, y: SWITCH_Y, width: 2 * half, height: SWITCH_HEIGHT, rx: 6 });
    this.switchWords = svg(element, 'text', { class: 'strong', x: middle, y: SWITCH_Y + 23 });
    this.nodes = Array.from({ length: job.workers }, (_, rank) => this.worker(spacing * (rank + 0.5), box, rank));
    if (this.last) this.draw(this.last, 0);
  }

  // Two lanes: up on the left, down on the right.
  link(x, y, top, topY, gap) {
    const lanes = [-gap / 2, gap / 2].map((shift, lane) => {
      const [y1, y2] = [y - 2, topY + SWITCH_HEIGHT + 2];
      const ends = lane ? { x1: top + shift, y1: y2, x2: x + shift, y2: y1 } : { x1: x + shift, y1, x2: top + shift, y2 };
      svg(this.element, 'line', { class: 'rail', ...ends, 'stroke-width': Math.min(5, gap * 0.7) });
      return svg(this.element, 'line', { class: 'flow', ...ends });
    });
    return { lanes };
  }

  worker(x, width, rank) {
    const node = svg(this.element, 'g');
    const frame = svg(node, 'rect', { class: 'box worker', x: x - width / 2, y: this.workerY, width, height: WORKER_HEIGHT, rx: 6 });
    const name = svg(node, 'text', { class: 'strong', x, y: this.workerY + 18 });
    const phase = svg(node, 'text', { class: 'small', x, y: this.workerY + 34 });
    const rate = svg(node, 'text', { class: 'small', x, y: this.workerY + WORKER_HEIGHT + 16 });
    const every = Math.ceil(20 * this.job.workers / this.width);
    setText(name, this.detail === 'full' ? `worker ${rank}` : rank % every === 0 ? `${rank}` : '');
    return { frame, phase, rate };
  }

  draw(frame, passed_s) {
    this.last = frame;
    const absent = worker => !['training', 'joining', 'attached', 'finished'].includes(worker.state);
    frame.workers.forEach((worker, rank) => {
      const { frame: box, phase, rate } = this.nodes[rank];
      const late = worker.late_share > 0.5;
      box.setAttribute('class', `box worker${late ? ' late' : ''}${absent(worker) ? ' absent' : ''}`);
      if (this.detail === 'full') {
        const words = absent(worker) || worker.state === 'finished' ? worker.state : worker.phase;
        setText(phase, [words, late && (this.wide || !words ? 'late' : '▾')].filter(Boolean).join(this.wide ? ', ' : ' ') || '–');
        setText(rate, `↑ ${number(worker.sent_mbps)}  ↓ ${number(worker.received_mbps)}`);
      }
      this.flow(rank, this.job.link_mbps[rank], [worker.sent_mbps, worker.received_mbps], passed_s);
    });
    frame.uplinks.forEach((rates, rack) => {
      this.flow(frame.workers.length + rack, this.job.uplink_mbps[rack], rates, passed_s);
    });
    setText(this.switchWords, this.words(frame));
    const racks = this.job.leaves.length;
    const shape = `${frame.workers.length} workers ${racks ? `in ${racks} racks of a tree` : 'around one switch'}; `;
    this.element.setAttribute('aria-label', shape + frame.workers
      .map(worker => `worker ${worker.rank} sends ${number(worker.sent_mbps)} and receives ${number(worker.received_mbps)} Mbit/s`)
      .join('; '));
  }

  words(frame) {
    const { collective, workers } = this.job;
    if (collective === 'switch') return `${this.job.leaves.length ? 'root' : 'P4 switch'} sums ${frame.k} of ${workers}`;
    return collective === 'server' ? 'P4 switch forwards to the server' : `P4 switch forwards (${collective})`;
  }

  // Width and speed of the dashes show how much of the link's rate is used.
  flow(number, most_mbps, rates, passed_s) {
    this.links[number].lanes.forEach((line, lane) => {
      const used = Math.min(1, rates[lane] / (most_mbps || 1000));
      line.classList.toggle('idle', rates[lane] < 0.01);
      line.setAttribute('stroke-width', 1.5 + 3.5 * Math.sqrt(used));
      this.offsets[number][lane] = (this.offsets[number][lane] + passed_s * (10 + 90 * Math.sqrt(used))) % 12;
      line.style.strokeDashoffset = -this.offsets[number][lane];
    });
  }
}

