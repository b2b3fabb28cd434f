// The counts and rates of the last minutes, of the broker or of one stream, for plots. A request
// returns all points since the previous request, so that a hidden page catches up.

import { get } from "./api.js";

const MAX_POINTS = 300;
// The broker computes rates over the same number of points.
const MEAN_POINTS = 5;

export class History {
  times = [];
  series = {};

  /** The history of a stream, or of the broker. */
  constructor(stream = undefined) {
    this.stream = stream;
  }

  async refresh(signal) {
    const since = this.times.at(-1);
    this.#add(await get("/api/history", { stream: this.stream, since }, signal));
  }

  /** Data for uPlot: times in seconds, then a column for each name. */
  columns(...names) {
    const seconds = this.times.map((millis) => millis / 1000);
    return [seconds, ...names.map((name) => this.series[name] ?? seconds.map(() => null))];
  }

  /** Like `columns`, with moving averages: exports come in batches. */
  means(...names) {
    const [seconds, ...columns] = this.columns(...names);
    return [seconds, ...columns.map(mean)];
  }

  #add({ stepMillis, times, series }) {
    if (times.length === 0) return;
    const last = this.times.at(-1);
    // The clock was set back: drop earlier points.
    if (last !== undefined && times[0] <= last) this.#clear();
    // A gap in the line while the broker was unavailable.
    const isGap = this.times.length > 0 && times[0] - last > 2.5 * stepMillis;
    const known = this.times.length;
    const gap = isGap ? [null] : [];
    this.times = trim([...this.times, ...(isGap ? [last + stepMillis] : []), ...times]);
    for (const [name, values] of Object.entries(series)) {
      const before = this.series[name] ?? new Array(known).fill(null);
      this.series[name] = trim([...before, ...gap, ...values]);
    }
  }

  #clear() {
    this.times = [];
    this.series = {};
  }
}

function mean(values) {
  return values.map((value, index) => {
    if (value === null) return null;
    const last = values.slice(Math.max(0, index + 1 - MEAN_POINTS), index + 1);
    const known = last.slice(last.lastIndexOf(null) + 1);
    return known.reduce((total, each) => total + each, 0) / known.length;
  });
}

function trim(values) {
  return values.slice(-MAX_POINTS);
}
