// Runs a function once a second, one call at a time, and pauses while the page is hidden.

const INTERVAL_MILLIS = 1000;

export class Poll {
  #work;
  #timer = null;
  #abort = null;
  #isPaused = false;

  /** `work(signal)` is one round. It must not throw. */
  constructor(work) {
    this.#work = work;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
  }

  /** Starts a round at once, and aborts the current round, which may be for another page. */
  now() {
    this.#isPaused = false;
    this.#abort?.abort();
    clearTimeout(this.#timer);
    this.#round();
  }

  /** Stops until `now` is called. */
  pause() {
    this.#isPaused = true;
  }

  async #round() {
    const abort = new AbortController();
    this.#abort = abort;
    const begun = performance.now();
    await this.#work(abort.signal);
    if (abort.signal.aborted || this.#isPaused) return;
    const rest = INTERVAL_MILLIS - (performance.now() - begun);
    this.#timer = setTimeout(() => this.#next(), Math.max(0, rest));
  }

  #next() {
    if (!document.hidden) this.#round();
  }
}
