// The list of streams: size, rates, times, and the state of their exports.

import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import { formatCount, formatDuration, formatRate, formatShort, plural } from "../format.js";
import {
  agoPart,
  emptyPart,
  filterPart,
  heading,
  kindOfExport,
  matches,
  statePart,
  storedPart,
  wordOfExport,
} from "../parts.js";
import { streamLink } from "../router.js";
import { LiveTable, textCell } from "../table.js";

// Further exports are counted.
const MAX_EXPORTS = 3;

export function streamsView(app) {
  let words = [];
  let streams = [];
  const count = element("p", { class: "count", role: "status" });
  const filter = filterPart("Filter streams", "Filter by name, destination or state", (given) => {
    words = given;
    show();
  });
  const empty = emptyPart(
    "No streams yet. ",
    "penstock append notes --create hello",
    " creates one.",
  );
  const table = streamsTable();

  function show() {
    const shown = words.length
      ? streams.filter((stream) => matches(searchText(stream), words))
      : streams;
    setText(
      count,
      shown.length === streams.length
        ? plural(streams.length, "stream")
        : `${formatCount(shown.length)} of ${plural(streams.length, "stream")}`,
    );
    setHidden(empty, streams.length > 0);
    setHidden(table.element, streams.length === 0);
    table.update(shown, app.now(), "No stream matches the filter.");
  }

  return {
    title: "Streams",
    showsOverview: true,
    element: element(
      "div",
      { class: "view" },
      heading("Streams", count, filter.element),
      element("section", { class: "panel flush", "aria-label": "Streams" }, table.element, empty),
    ),
    refresh(overview) {
      streams = overview.streams;
      show();
    },
  };
}

function searchText({ name, problem, exports }) {
  const ofExports = exports.map(
    (it) => `${it.identifier} ${it.destination} ${it.kind} ${wordOfExport(it.state)}`,
  );
  return [name, problem === null ? "" : "problem", ...ofExports].join(" ");
}

function streamsTable() {
  return new LiveTable({
    label: "Streams",
    className: "streams",
    keyOf: (stream) => stream.name,
    sortedBy: "name",
    rowState: (stream) => (stream.problem === null ? null : "bad"),
    columns: [
      { id: "name", label: "Name", order: (stream) => stream.name, cell: nameCell },
      {
        id: "stored",
        label: "Stored",
        descends: true,
        order: (stream) => stream.totalBytes,
        cell: storedPart,
      },
      {
        id: "messages",
        label: "Messages",
        isNumber: true,
        descends: true,
        order: (stream) => stream.messages,
        cell: messagesCell,
      },
      {
        id: "rate",
        label: "Appended",
        isNumber: true,
        descends: true,
        order: (stream) => stream.rates.messagesAppended,
        cell: () => textCell(({ rates }) => formatRate(rates.messagesAppended)),
      },
      {
        id: "oldest",
        label: "Oldest",
        isNumber: true,
        order: (stream) => stream.oldestTime ?? Infinity,
        cell: () => timeCell("oldestTime"),
      },
      {
        id: "newest",
        label: "Newest",
        isNumber: true,
        descends: true,
        order: (stream) => stream.newestTime ?? -Infinity,
        cell: () => timeCell("newestTime"),
      },
      { id: "retention", label: "When full", order: retention, cell: () => textCell(retention) },
      { id: "exports", label: "Exports", descends: true, order: urgency, cell: exportsCell },
    ],
  });
}

function nameCell({ name }) {
  const problem = element("span", { class: "problem" });
  return {
    element: element(
      "div",
      {},
      element("a", { class: "stream-name", href: streamLink(name), title: name }, name),
      problem,
    ),
    update(stream) {
      setHidden(problem, stream.problem === null);
      setText(problem, stream.problem ?? "");
    },
  };
}

function messagesCell() {
  return textCell(
    ({ messages }) => formatCount(messages),
    ({ messages, oldestSequenceNumber, newestSequenceNumber }) =>
      messages
        ? `${formatCount(oldestSequenceNumber)} to ${formatCount(newestSequenceNumber)}`
        : null,
  );
}

function timeCell(field) {
  const part = agoPart();
  return { element: part.element, update: (stream, now) => part.update(stream[field], now) };
}

/** The retention of messages: `overwrites oldest · 7 d`. */
function retention({ problem, strategyOnFull, timeToLiveMillis }) {
  if (problem !== null) return "–";
  const full = strategyOnFull === "OverwriteOldestData" ? "overwrites oldest" : "rejects new";
  return timeToLiveMillis ? `${full} · ${formatDuration(timeToLiveMillis)}` : full;
}

const URGENCIES = { failing: 4, paused: 3, due: 2, waiting: 2, exporting: 2, "up-to-date": 1 };

/** The worst state of the exports, then their lag. */
function urgency({ exports }) {
  return Math.max(0, ...exports.map((it) => (URGENCIES[it.state] ?? 0) + it.messagesBehind / 1e15));
}

function exportsCell() {
  const list = element("ul", { class: "export-list" });
  const rows = new KeyedList(list, (it) => it.identifier, exportLine);
  const more = element("span", { class: "muted" });
  return {
    element: element("div", {}, list, more),
    update({ exports }) {
      rows.update(exports.slice(0, MAX_EXPORTS));
      const rest = exports.length - MAX_EXPORTS;
      setText(more, rest > 0 ? `and ${formatCount(rest)} more` : exports.length === 0 ? "–" : "");
    },
  };
}

function exportLine() {
  const state = statePart();
  const behind = element("span", { class: "muted" });
  const node = element("li", {}, state.element, behind);
  return {
    element: node,
    update(it) {
      state.update(kindOfExport(it.state), it.identifier);
      const lag = it.messagesBehind > 0 ? `, ${formatShort(it.messagesBehind)} behind` : "";
      setText(behind, `${wordOfExport(it.state)}${lag}`);
      setAttribute(node, "title", it.errorMessage || it.destination);
    },
  };
}
