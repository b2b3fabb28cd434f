// The events of the broker, from its log.

import { AccessError, get } from "./api.js";

const MAX_EVENTS = 500;
const KINDS = { ERROR: "bad", WARN: "warn", INFO: "off" };
const WORDS = { ERROR: "error", WARN: "warning", INFO: "info" };

export class EventFeed {
  // Oldest first.
  events = [];
  // The reason if the token does not allow events.
  refusal = "";
  #last = undefined;
  #startedAt = null;

  async refresh({ startedAt }, signal) {
    if (this.refusal) return;
    try {
      await this.#add(startedAt, signal);
    } catch (error) {
      if (!(error instanceof AccessError)) throw error;
      this.refusal = error.message;
    }
  }

  async #add(startedAt, signal) {
    // Event ids start again after a restart of the broker.
    if (this.#startedAt !== startedAt) this.#last = undefined;
    this.#startedAt = startedAt;
    const { events } = await get("/api/events", { since: this.#last }, signal);
    if (events.length === 0) return;
    this.#last = events.at(-1).id;
    this.events = [...this.events, ...events.map((event) => describe(event, startedAt))].slice(
      -MAX_EVENTS,
    );
  }
}

function describe(event, startedAt) {
  return {
    ...event,
    key: `${startedAt}/${event.id}`,
    kind: KINDS[event.level] ?? "off",
    word: WORDS[event.level] ?? event.level.toLowerCase(),
  };
}
