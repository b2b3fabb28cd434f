// The overview: rates, lag, storage, problems, busiest streams and latest events.

import { attention } from "../attention.js";
import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import {
  formatByteRate,
  formatBytes,
  formatCount,
  formatRate,
  formatShare,
  formatShort,
  plural,
} from "../format.js";
import { History } from "../history.js";
import { agoPart, emptyPart, heading, meterPart, statePart, tilePart } from "../parts.js";
import { BYTE_INCREMENTS, TimePlot } from "../plot.js";
import { streamLink } from "../router.js";
import { EventFeed } from "../feed.js";
import { LiveTable, textCell } from "../table.js";

const MAX_BUSIEST = 6;
const MAX_LATEST = 6;
const APPENDED = { label: "Appended", color: "--appended" };
const EXPORTED = { label: "Exported", color: "--exported" };

export function overviewView(app) {
  const history = new History();
  const feed = new EventFeed();
  const tiles = tilesPart();
  const problems = problemsPart();
  const busiest = busiestPart();
  const latest = latestPart();
  const group = "overview";
  const messages = new TimePlot({
    title: "Messages per second",
    id: "plot-messages",
    series: [APPENDED, EXPORTED],
    format: formatRate,
    group,
    height: 220,
  });
  const bytes = new TimePlot({
    title: "Bytes per second",
    id: "plot-bytes",
    series: [APPENDED, EXPORTED],
    format: formatByteRate,
    increments: BYTE_INCREMENTS,
    group,
    height: 160,
  });
  const behind = new TimePlot({
    title: "Messages behind, all exports",
    id: "plot-behind",
    series: [{ label: "Behind", color: "--behind" }],
    format: formatShort,
    group,
    height: 160,
  });

  return {
    title: "Overview",
    showsOverview: true,
    element: element(
      "div",
      { class: "view" },
      heading("Overview"),
      problems.element,
      tiles.element,
      element("div", { class: "plots" }, messages.element, bytes.element, behind.element),
      element("div", { class: "columns" }, busiest.element, latest.element),
    ),
    async refresh(overview, signal) {
      tiles.update(overview);
      problems.update(attention(overview));
      busiest.update(overview.streams, app.now());
      await Promise.all([history.refresh(signal), feed.refresh(overview, signal)]);
      messages.update(history.means("messagesAppended", "messagesExported"));
      bytes.update(history.means("bytesAppended", "bytesExported"));
      behind.update(history.columns("messagesBehind"));
      latest.update(feed, app.now());
    },
    close() {
      for (const plot of [messages, bytes, behind]) plot.close();
    },
  };
}

function tilesPart() {
  const appended = tilePart("Appended", "tile-appended");
  const exported = tilePart("Exported", "tile-exported");
  const behind = tilePart("Behind", "tile-behind");
  const stored = tilePart("Stored", "tile-stored");
  const disk = meterPart("Disk in use");
  stored.element.append(element("dd", {}, disk.element));
  const streams = tilePart("Streams", "tile-streams");
  const clients = tilePart("Connections", "tile-connections");
  const all = [appended, exported, behind, stored, streams, clients];
  return {
    element: element(
      "dl",
      { class: "tiles" },
      all.map((tile) => tile.element),
    ),
    update({ rates, totals, store, streams: list, connections, waitingReads }) {
      const exports = list.flatMap((stream) => stream.exports);
      const late = exports.filter((it) => it.messagesBehind > 0);
      appended.update(
        formatRate(rates.messagesAppended),
        `${formatByteRate(rates.bytesAppended)} · ${formatShort(totals.messagesAppended)} since start`,
      );
      exported.update(
        formatRate(rates.messagesExported),
        `${formatByteRate(rates.bytesExported)} · ${formatShort(totals.messagesExported)} since start`,
      );
      behind.update(
        formatShort(sum(exports, (it) => it.messagesBehind)),
        exports.length ? `${late.length} of ${plural(exports.length, "export")}` : "no exports",
      );
      stored.update(
        formatBytes(store.totalBytes),
        `${formatBytes(store.diskFreeBytes)} free on disk`,
      );
      const used = store.diskTotalBytes - store.diskFreeBytes;
      disk.update(used, store.diskTotalBytes, formatShare(used, store.diskTotalBytes), true);
      const broken = list.filter((stream) => stream.problem !== null).length;
      streams.update(
        formatCount(list.length),
        broken ? `${broken} unreadable` : plural(store.segments, "segment"),
      );
      clients.update(
        formatCount(connections),
        `${plural(waitingReads, "read")} waiting · ${plural(totals.requestsFailed, "failed request")}`,
      );
    },
  };
}

function sum(items, of) {
  return items.reduce((total, item) => total + of(item), 0);
}

function problemsPart() {
  const list = element("ul", { class: "problems" });
  const node = element(
    "section",
    { class: "panel attention", "aria-label": "Needs attention", hidden: true },
    element("h2", {}, "Needs attention"),
    list,
  );
  const rows = new KeyedList(list, (problem) => problem.key, problemPart);
  return {
    element: node,
    update(problems) {
      setHidden(node, problems.length === 0);
      rows.update(problems);
    },
  };
}

function problemPart(problem) {
  const subject = element(
    problem.link ? "a" : "strong",
    { class: "subject", href: problem.link },
    problem.subject,
  );
  const text = element("span", { class: "problem-text" });
  const node = element(
    "li",
    {},
    element("span", { class: "dot", "aria-hidden": "true" }),
    subject,
    text,
  );
  return {
    element: node,
    update(changed) {
      setAttribute(node, "data-kind", changed.kind);
      setText(text, changed.text);
    },
  };
}

function busiestPart() {
  const empty = emptyPart(
    "No streams yet. ",
    "penstock append notes --create hello",
    " creates one.",
  );
  const table = new LiveTable({
    label: "Busiest streams",
    className: "compact busiest",
    keyOf: (stream) => stream.name,
    columns: [
      {
        id: "name",
        label: "Stream",
        cell: ({ name }) => ({
          element: element("a", { href: streamLink(name), title: name }, name),
        }),
      },
      {
        id: "rate",
        label: "Appended",
        isNumber: true,
        cell: () => textCell(({ rates }) => formatRate(rates.messagesAppended)),
      },
      {
        id: "out",
        label: "Exported",
        isNumber: true,
        cell: () =>
          textCell(({ rates, exports }) =>
            exports.length ? formatRate(rates.messagesExported) : "–",
          ),
      },
      {
        id: "behind",
        label: "Behind",
        isNumber: true,
        cell: () =>
          textCell(({ exports }) =>
            exports.length ? formatShort(sum(exports, (it) => it.messagesBehind)) : "–",
          ),
      },
    ],
  });
  return {
    element: element(
      "section",
      { class: "panel" },
      element("h2", {}, "Busiest streams"),
      table.element,
      empty,
    ),
    update(streams, now) {
      setHidden(empty, streams.length > 0);
      setHidden(table.element, streams.length === 0);
      const rate = (stream) => stream.rates?.messagesAppended ?? 0;
      table.update(
        [...streams]
          .filter((stream) => stream.problem === null)
          .sort((one, other) => rate(other) - rate(one))
          .slice(0, MAX_BUSIEST),
        now,
      );
    },
  };
}

function latestPart() {
  const list = element("ol", { class: "latest" });
  const empty = element("p", { class: "empty" });
  let now = 0;
  const rows = new KeyedList(
    list,
    (event) => event.key,
    (event) => {
      const level = statePart();
      level.update(event.kind, event.word);
      const ago = agoPart();
      return {
        element: element(
          "li",
          {},
          level.element,
          element("span", { class: "latest-text" }, event.message),
          ago.element,
        ),
        update: () => ago.update(event.time, now),
      };
    },
  );
  return {
    element: element(
      "section",
      { class: "panel" },
      element("h2", {}, "Latest events"),
      list,
      empty,
      element("p", { class: "more" }, element("a", { href: "#/events" }, "All events")),
    ),
    update({ events: all, refusal }, at) {
      const events = all.slice(-MAX_LATEST).reverse();
      now = at;
      setText(empty, refusal || "No events yet.");
      setHidden(empty, events.length > 0);
      rows.update(events);
    },
  };
}
