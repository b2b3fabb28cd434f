// Whether the broker answers: a word in the bar, and a banner while it does not.

import { element, setAttribute, setHidden, setText } from "./dom.js";
import { formatDuration } from "./format.js";

const WORDS = { live: "Live", away: "No answer", held: "Token needed" };

export class Connection {
  #word = document.getElementById("connection");
  #banner = document.getElementById("banner");
  // Seconds that count up are not read out again and again.
  #since = element("span", { "aria-hidden": "true" });
  #lostAt = null;

  /** `state` is `live`, `away` or `held`; whether the broker was away until now. */
  show(state, said = "") {
    const wasAway = this.#lostAt !== null;
    setAttribute(document.body, "data-connection", state);
    setAttribute(this.#word, "data-state", state);
    setText(this.#word, WORDS[state]);
    this.#lostAt = state === "away" ? (this.#lostAt ?? Date.now()) : null;
    if (state === "away" && !wasAway) {
      const words = said === "" ? "" : ` It said: ${said}.`;
      this.#banner.replaceChildren(
        `The broker does not answer; trying again.${words} `,
        this.#since,
      );
    }
    setHidden(this.#banner, state !== "away");
    if (state === "away") setText(this.#since, this.#duration());
    return wasAway;
  }

  #duration() {
    const millis = Date.now() - this.#lostAt;
    return millis < 2000 ? "" : `What is shown is ${formatDuration(millis)} old.`;
  }
}
