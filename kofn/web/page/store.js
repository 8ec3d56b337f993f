// The frames received, by trial and job, and the charts' data from them.

export class Track {
  constructor(trial, job) {
    this.trial = trial;
    this.job = job;
    this.frames = [];
    this.times = [];
    this.points = { time: [], iteration: [], ms: [], k: [], accuracy: [], predicted: [] };
    this.workers = job.workers === 0 ? [] : Array.from({ length: job.workers }, () => ({
      estimate: [], low: [], high: [], injected: [],
    }));
    this.events = [];
    this.ends = []; // for each frame the number of points and events up to it
  }

  add(frame) {
    this.frames.push(frame);
    this.times.push(frame.time_s);
    const { points } = this;
    for (const [iteration, time, ms, k, , accuracy] of frame.points) {
      points.time.push(time);
      points.iteration.push(iteration);
      points.ms.push(ms);
      points.k.push(k);
      points.accuracy.push(accuracy);
      points.predicted.push(frame.predicted_ms);
    }
    for (const worker of frame.workers) {
      const series = this.workers[worker.rank];
      series.estimate.push(worker.lambda_ms);
      series.low.push(worker.low_ms);
      series.high.push(worker.high_ms);
      series.injected.push(worker.injected_ms);
    }
    this.events.push(...frame.events);
    this.ends.push({ points: points.time.length, events: this.events.length });
  }

  get length_s() { return this.times.at(-1) ?? 0; }

  // The latest frame at a time.
  at(time) {
    let low = 0, high = this.times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.times[middle] <= time + 1e-6) low = middle; else high = middle - 1;
    }
    return low;
  }
}

export class Store {
  constructor(header) {
    this.header = header;
    this.tracks = header.trials.map((_, trial) => new Map(header.jobs.map(job => [job.id, new Track(trial, job)])));
  }

  add(frame) {
    const track = this.tracks[frame.trial].get(frame.job);
    track.add(frame);
    return track;
  }

  track(trial, job) { return this.tracks[trial].get(job); }
}
