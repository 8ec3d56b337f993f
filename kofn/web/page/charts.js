// Accuracy, iteration time, k and blocking over the trial's time, up to the time shown.

import uPlot from './uplot/uPlot.esm.js';
import { FONT, colour, milliseconds, number, quantity, setText, title, workerColour } from './theme.js';

const HEIGHT = 190, SHOWN_WORKERS = 8;

export class Charts {
  constructor(job) {
    this.job = job;
    this.workers = Array.from({ length: Math.min(job.workers, SHOWN_WORKERS) }, (_, rank) => rank);
    const [small] = document.querySelectorAll('#lambda-title small');
    setText(small, `dashed: injected; band: 95\u202f%${job.workers > SHOWN_WORKERS ? `; workers 0 to ${SHOWN_WORKERS - 1}` : ''}`);
    setText(document.getElementById('metric-name'), `${title(job.metric)}${job.metric?.percent ? ', %' : ''}`);
    this.build();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.build());
    new ResizeObserver(() => this.charts.forEach(chart => fit(chart))).observe(document.getElementById('time-chart'));
  }

  build() {
    this.charts?.forEach(chart => chart.destroy());
    const plain = () => colour('accent'), dashed = () => colour('muted');
    this.charts = [
      this.chart('accuracy-chart', [line(plain), line(dashed, [5, 4])], { y: { range: this.job.metric?.percent ? shareRange : null } }),
      this.chart('time-chart', [line(plain), line(dashed, [5, 4])], { y: { range: (_, __, high) => [0, 1.1 * (high || 1)] } }),
      this.chart('k-chart', [{ ...line(plain), paths: uPlot.paths.stepped({ align: 1 }) }],
        { y: { range: () => [0.5, this.job.workers + 0.5] } }, { splits: () => whole(this.job.workers) }),
      this.chart('lambda-chart', this.workers.flatMap(blocking),
        { y: { distr: 3, range: (_, low, high) => [0.5, Math.max(100, 1.3 * (high || 1))] } },
        { splits: () => [1, 10, 100, 1000], values: (_, splits) => splits },
        this.workers.map(rank => ({ series: [4 * rank + 3, 4 * rank + 2], fill: `${workerColour(rank)}22` }))),
    ];
    this.key = null;
  }

  chart(id, series, scales, axis = {}, bands = []) {
    const parent = document.getElementById(id);
    const out = parent.parentElement.querySelector('output');
    const look = { stroke: () => colour('muted'), font: FONT, grid: { stroke: () => colour('line'), width: 1 }, ticks: { show: false } };
    const options = {
      width: parent.clientWidth || 300, height: HEIGHT, legend: { show: false }, bands,
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      padding: [8, 26, 0, 0],
      scales: { x: { time: false, range: () => [0, Math.max(this.length_s, 0.1)] }, ...scales },
      axes: [
        { ...look, grid: { show: false }, size: 26, gap: 3, values: (_, splits) => splits.map(split => `${+split.toFixed(2)} s`) },
        { ...look, size: 38, gap: 4, ...axis },
      ],
      series: [{}, ...series],
      hooks: {
        draw: [chart => this.marks(chart), ...(id === 'lambda-chart' ? [chart => this.names(chart)] : [])],
        setCursor: [chart => setText(out, this.reading(id, chart))],
      },
    };
    return new uPlot(options, [[], ...series.map(() => [])], parent);
  }

  draw(track, index, key) {
    this.track = track;
    this.index = index;
    this.length_s = track.length_s;
    if (key === this.key) return;
    this.key = key;
    const { points, events } = track.ends[index];
    this.events = track.events.slice(0, events);
    const cut = name => track.points[name].slice(0, points);
    const time = cut('time');
    const [accuracy, times, k, lambda] = this.charts;
    const { metric } = this.job, unit = metric?.percent ? 100 : 1;
    accuracy.setData([time, cut('accuracy').map(value => value === null ? null : unit * value),
      time.map(() => metric ? unit * metric.target : null)]);
    times.setData([time, cut('ms'), cut('predicted')]);
    k.setData([time, cut('k')]);
    const up = name => rank => track.workers[rank][name].slice(0, index + 1).map(positive);
    lambda.setData([track.times.slice(0, index + 1), ...this.workers.flatMap(rank =>
      [up('estimate')(rank), up('low')(rank), up('high')(rank), up('injected')(rank)])]);
    this.charts.forEach((chart, at) => setText(chart.root.parentElement.parentElement.querySelector('output'),
      this.reading(['accuracy-chart', 'time-chart', 'k-chart', 'lambda-chart'][at], chart)));
  }

  // The values under the cursor, or at the newest point.
  reading(id, chart) {
    const at = chart.cursor.idx ?? chart.data[0].length - 1;
    if (at < 0 || !chart.data[0].length) return '';
    const value = series => chart.data[series][at];
    const when = `${number(chart.data[0][at])} s`;
    const words = {
      'accuracy-chart': () => quantity(value(1) === null ? null : value(1) / (this.job.metric?.percent ? 100 : 1), this.job.metric),
      'time-chart': () => `${milliseconds(value(1))} ms`,
      'k-chart': () => `${value(1)} of ${this.job.workers}`,
      'lambda-chart': () => this.workers.length > 4 ? '' : this.workers.map(rank => milliseconds(value(4 * rank + 1))).join(' / '),
    }[id]();
    return chart.cursor.idx === null || chart.cursor.idx === undefined ? words : `${when}: ${words}`;
  }

  // A dotted line at each event.
  marks(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour('faint');
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const event of this.events ?? []) {
      const x = Math.round(chart.valToPos(event.time_s, 'x', true)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // Each worker's number at the end of its line, without overlap.
  names(chart) {
    const { ctx, data } = chart;
    const last = data[0].length - 1;
    if (last < 0) return;
    const ratio = devicePixelRatio;
    const names = this.workers.map(rank => ({ rank, value: data[4 * rank + 1][last] }))
      .filter(name => name.value !== null)
      .map(name => ({ ...name, y: chart.valToPos(name.value, 'y', true) }))
      .sort((one, other) => one.y - other.y);
    names.forEach((name, at) => { if (at) name.y = Math.max(name.y, names[at - 1].y + 12 * ratio); });
    const over = (names.at(-1)?.y ?? 0) - (chart.bbox.top + chart.bbox.height);
    ctx.save();
    ctx.font = `600 ${11 * ratio}px Inter, system-ui, sans-serif`;
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    const x = chart.valToPos(data[0][last], 'x', true) + 5 * ratio;
    for (const { rank, y } of names) {
      ctx.fillStyle = workerColour(rank);
      ctx.fillText(`w${rank}`, x, y - Math.max(0, over));
    }
    ctx.restore();
  }
}

const line = (stroke, dash) => ({ stroke, width: 1.5, dash, points: { show: false }, spanGaps: true });

// Estimate, both ends of its interval, and the truth.
const blocking = rank => {
  const held = { ...line(() => workerColour(rank)), paths: uPlot.paths.stepped({ align: 1 }) };
  return [{ ...held, width: 2 }, { ...held, width: 0 }, { ...held, width: 0 }, { ...held, dash: [4, 4] }];
};

const positive = value => value === null ? null : Math.max(0.5, value);

const shareRange = (_, low) => [Math.max(0, Math.min(50, Math.floor((low ?? 0) / 10) * 10)), 100];

const whole = workers => Array.from({ length: workers }, (_, at) => at + 1).filter(k => k === 1 || k % Math.ceil(workers / 8) === 0);

function fit(chart) {
  const width = chart.root.parentElement.clientWidth;
  if (width && width !== chart.width) chart.setSize({ width, height: HEIGHT });
}
