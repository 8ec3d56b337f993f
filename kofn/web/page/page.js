// The page: takes the stream of frames, and draws the player's frame.

import { Charts } from './charts.js';
import { Events } from './events.js';
import { Player } from './player.js';
import { Slots } from './slots.js';
import { Store } from './store.js';
import { milliseconds, quantity, setText, title } from './theme.js';
import { Topology } from './topology.js';
import { Workers } from './workers.js';

const LANE_S = 0.5, DRAW_EVERY_MS = 50;

const find = id => document.getElementById(id);
const still = matchMedia('(prefers-reduced-motion: reduce)');

history.replaceState(null, '', location.pathname); // the cookie has the token now

let store, player, views, shown = 0, due = false, caught = false;

const source = new EventSource('frames');
source.addEventListener('run', event => store ?? begin(JSON.parse(event.data)));
source.addEventListener('frame', event => player.grown(store.add(JSON.parse(event.data))));
source.addEventListener('live', event => {
  caught = true;
  player.growing = true;
  if (player.mode === 'paused' && player.time === 0) player.follow();
  state('live', JSON.parse(event.data) || 'live');
});
source.addEventListener('end', () => {
  source.close();
  const replay = !player.growing && !caught;
  player.ended();
  state('over', replay ? 'replay of a finished run' : 'the run is over; its received part can be replayed');
  if (replay && !still.matches) player.toggle();
});
source.addEventListener('error', () => state('lost', 'the server does not answer'));

function begin(header) {
  store = new Store(header);
  document.title = `kofn: ${header.name}`;
  setText(find('run-name'), header.name);
  setText(find('run-facts'), `${header.started}, ${header.target || 'simulated'}`);
  player = new Player(store, () => { due = true; });
  requestAnimationFrame(tick);
}

function state(kind, words) {
  find('state').dataset.state = kind;
  setText(find('state'), words);
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { due = true; });
addEventListener('resize', () => { due = true; });

let before = performance.now();

function tick(now) {
  const passed_s = Math.min(0.25, (now - before) / 1000);
  before = now;
  const moves = player.advance(passed_s) || player.mode === 'live';
  if ((due || (moves && !still.matches)) && now - shown >= DRAW_EVERY_MS && player.frame) {
    draw(moves && !still.matches ? (now - shown) / 1000 : 0);
    shown = now;
    due = false;
  }
  requestAnimationFrame(tick);
}

function viewsOf(job) {
  return {
    job,
    topology: new Topology(find('topology'), job),
    slots: new Slots(find('slots'), find('slots-words')),
    workers: new Workers(find('workers'), job),
    charts: views?.charts.job === job ? views.charts : (views?.charts.charts.forEach(chart => chart.destroy()), new Charts(job)),
    events: new Events(find('events')),
  };
}

function draw(passed_s) {
  const { track, index, frame } = player;
  if (views?.job !== track.job) views = viewsOf(track.job);
  figures(frame, track.job);
  views.topology.draw(frame, Math.min(passed_s, 0.2));
  views.slots.draw(frame, track.job, store.header.target);
  views.workers.draw(track, index, LANE_S);
  views.charts.draw(track, index, `${track.trial}/${track.job.id}/${index}/${track.frames.length}`);
  views.events.draw(track, index);
}

function figures(frame, job) {
  setText(find('lane-span'), `${LANE_S} s`);
  setText(find('iteration'), frame.iteration.toLocaleString('en'));
  figure('k', frame.k || '–', ` of ${job.workers}`);
  setText(find('metric'), title(job.metric));
  figure('accuracy', quantity(frame.accuracy, job.metric), job.metric ? ` target ${quantity(job.metric.target, job.metric)}` : '');
  figure('iteration-time', milliseconds(frame.iteration_ms), ' ms, mean of 20');
  figure('predicted', milliseconds(frame.predicted_ms), frame.predicted_ms === null ? '' : ' ms');
  figure('rule', frame.late_gradient || '–', '');
}

function figure(id, value, unit) {
  const element = find(id);
  const key = `${value}${unit}`;
  if (element.dataset.shown === key) return;
  element.dataset.shown = key;
  const small = document.createElement('small');
  small.textContent = unit;
  element.replaceChildren(String(value), small);
}
