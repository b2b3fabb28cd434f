// The page of events, newest first.

import { element, KeyedList, setHidden, setText } from "../dom.js";
import { EventFeed } from "../feed.js";
import { formatTime, plural } from "../format.js";
import { choicePart, filterPart, heading, matches, statePart } from "../parts.js";

const CHOICES = [
  ["INFO", "All"],
  ["WARN", "Warnings"],
  ["ERROR", "Errors"],
];
const RANKS = { INFO: 0, WARN: 1, ERROR: 2 };

export function eventsView() {
  const feed = new EventFeed();
  let minLevel = "INFO";
  let words = [];
  const count = element("p", { class: "count" });
  const level = choicePart(
    "Minimum level",
    "level",
    CHOICES,
    minLevel,
    (chosen) => ((minLevel = chosen), show()),
  );
  const filter = filterPart(
    "Filter events",
    "Filter by source or message",
    (given) => ((words = given), show()),
  );
  const list = element("ol", { class: "events", "data-testid": "events" });
  const rows = new KeyedList(list, ({ key }) => key, eventPart);
  const empty = element("p", { class: "empty" });

  function show() {
    const shown = feed.events.filter(
      (event) =>
        (RANKS[event.level] ?? 0) >= RANKS[minLevel] &&
        matches(`${event.source} ${event.message}`, words),
    );
    rows.update([...shown].reverse());
    setText(
      count,
      shown.length === feed.events.length
        ? plural(shown.length, "event")
        : `${shown.length} of ${plural(feed.events.length, "event")}`,
    );
    setHidden(empty, shown.length > 0);
    setText(
      empty,
      feed.refusal || (feed.events.length > 0 ? "No event matches the filter." : "No events yet."),
    );
  }

  return {
    title: "Events",
    element: element(
      "div",
      { class: "view" },
      heading("Events", count, level.element, filter.element),
      element("section", { class: "panel flush", "aria-label": "Events" }, list, empty),
    ),
    async refresh(overview, signal) {
      await feed.refresh(overview, signal);
      show();
    },
  };
}

function eventPart({ kind, word, time, source, message }) {
  const level = statePart();
  level.update(kind, word);
  return {
    element: element(
      "li",
      { class: "event", "data-kind": kind },
      element(
        "time",
        { class: "event-time", datetime: new Date(time).toISOString() },
        formatTime(time),
      ),
      level.element,
      element("span", { class: "event-source" }, source),
      element("span", { class: "event-message" }, message),
    ),
  };
}
