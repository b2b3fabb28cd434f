// The page's heartbeat: asks once a second, never while an answer is still on its way, and not at
// all while nobody looks.

const INTERVAL_MILLIS = 1000;

export class Poll {
  #work;
  #timer = null;
  #abort = null;
  #isHeld = false;

  /** `work(signal)` is one round; it handles its own errors. */
  constructor(work) {
    this.#work = work;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
  }

  /** Begins a round at once; what is still under way belongs to another page or token. */
  now() {
    this.#isHeld = false;
    this.#abort?.abort();
    clearTimeout(this.#timer);
    this.#round();
  }

  /** No more rounds until somebody calls `now`. */
  hold() {
    this.#isHeld = true;
  }

  async #round() {
    const abort = new AbortController();
    this.#abort = abort;
    const begun = performance.now();
    await this.#work(abort.signal);
    if (abort.signal.aborted || this.#isHeld) return;
    const rest = INTERVAL_MILLIS - (performance.now() - begun);
    this.#timer = setTimeout(() => this.#goOn(), Math.max(0, rest));
  }

  #goOn() {
    if (!document.hidden) this.#round();
  }
}
