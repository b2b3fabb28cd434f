// The last minutes of the broker or of one stream: what the plots show. Only what is new is asked
// for, so that a page that was hidden catches up with one answer.

import { get } from "./api.js";

const POINTS = 300;
// As many as the broker takes for the rates that it tells.
const MEAN_OF = 5;

export class History {
  times = [];
  series = {};

  /** Of one stream, or of the whole broker. */
  constructor(stream = undefined) {
    this.stream = stream;
  }

  async refresh(signal) {
    const since = this.times.at(-1);
    this.#add(await get("/api/history", { stream: this.stream, since }, signal));
  }

  /** For uPlot: seconds, then a column for each name. */
  columns(...names) {
    const seconds = this.times.map((millis) => millis / 1000);
    return [seconds, ...names.map((name) => this.series[name] ?? seconds.map(() => null))];
  }

  /** The same for rates, each the mean of some seconds: exports come in batches, not evenly. */
  means(...names) {
    const [seconds, ...columns] = this.columns(...names);
    return [seconds, ...columns.map(mean)];
  }

  #add({ stepMillis, times, series }) {
    if (times.length === 0) return;
    const last = this.times.at(-1);
    // A clock that was set back: what is known no longer fits.
    if (last !== undefined && times[0] <= last) this.#clear();
    // Where the broker was away nothing is known, and no line is drawn.
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
  return values.map((value, place) => {
    if (value === null) return null;
    const last = values.slice(Math.max(0, place + 1 - MEAN_OF), place + 1);
    const known = last.slice(last.lastIndexOf(null) + 1);
    return known.reduce((total, each) => total + each, 0) / known.length;
  });
}

function trim(values) {
  return values.slice(-POINTS);
}
