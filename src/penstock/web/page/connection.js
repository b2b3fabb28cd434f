// The state of the connection: a word in the header, and a banner while the broker is unavailable.

import { element, setAttribute, setHidden, setText } from "./dom.js";
import { formatDuration } from "./format.js";

const WORDS = { live: "Live", unavailable: "Unavailable", "token-required": "Token required" };

export class Connection {
  #word = document.getElementById("connection");
  #banner = document.getElementById("banner");
  // Hidden from screen readers, which would read every change.
  #since = element("span", { "aria-hidden": "true" });
  #lostAt = null;

  /** Shows a state of `WORDS`. Returns whether the broker was unavailable until now. */
  show(state, reply = "") {
    const wasUnavailable = this.#lostAt !== null;
    setAttribute(document.body, "data-connection", state);
    setAttribute(this.#word, "data-state", state);
    setText(this.#word, WORDS[state]);
    this.#lostAt = state === "unavailable" ? (this.#lostAt ?? Date.now()) : null;
    if (state === "unavailable" && !wasUnavailable) {
      const details = reply === "" ? "" : ` Its error: ${reply}.`;
      this.#banner.replaceChildren(
        `The broker is unavailable; retrying.${details} `,
        this.#since,
      );
    }
    setHidden(this.#banner, state !== "unavailable");
    if (state === "unavailable") setText(this.#since, this.#duration());
    return wasUnavailable;
  }

  #duration() {
    const millis = Date.now() - this.#lostAt;
    return millis < 2000 ? "" : `The data is ${formatDuration(millis)} old.`;
  }
}
