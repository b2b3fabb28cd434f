// The page of a stream: statistics, exports, messages, definition.

import { get, pathOf, RejectedError } from "../api.js";
import { element, setHidden, setText } from "../dom.js";
import {
  formatByteRate,
  formatBytes,
  formatCount,
  formatDuration,
  formatRate,
  formatShare,
  formatShort,
  plural,
} from "../format.js";
import { History } from "../history.js";
import { agoPart, heading, meterPart, tilePart } from "../parts.js";
import { TimePlot } from "../plot.js";
import { ExportsPart } from "./exports.js";
import { MessagesPart } from "./messages.js";

export function streamView(app, { name, query }) {
  const history = new History(name);
  const tiles = tilesPart(app);
  const exports = new ExportsPart(app, name);
  const messages = new MessagesPart(app, name, query.get("from"));
  const definition = definitionPart();
  const series = [
    { label: "Appended", color: "--appended" },
    { label: "Exported", color: "--exported" },
  ];
  const rate = new TimePlot({
    title: "Messages per second",
    id: "plot-rate",
    series,
    format: formatRate,
    group: "stream",
    height: 180,
  });
  const behind = new TimePlot({
    title: "Messages behind",
    id: "plot-behind",
    series: [{ label: "Behind", color: "--behind" }],
    format: formatShort,
    group: "stream",
    height: 180,
  });
  const plots = element("div", { class: "plots pair" }, rate.element, behind.element);
  const body = element(
    "div",
    { class: "stack" },
    tiles.element,
    plots,
    exports.element,
    messages.element,
    definition.element,
  );
  const notice = element("p", { class: "note bad", role: "alert", hidden: true });

  function update(overview, stream) {
    tiles.update(stream);
    exports.update(overview.access, stream);
    definition.update(stream.definition);
    rate.update(history.means("messagesAppended", "messagesExported"));
    setHidden(behind.element, stream.exports.length === 0);
    behind.update(history.columns("messagesBehind"));
  }

  /** Shows a notice in place of the stream; "" shows the stream. */
  function setNotice(sentence) {
    setText(notice, sentence);
    setHidden(notice, sentence === "");
    setHidden(body, sentence !== "");
  }

  return {
    title: name,
    element: element(
      "div",
      { class: "view" },
      element(
        "nav",
        { class: "crumbs", "aria-label": "Breadcrumb" },
        element("a", { href: "#/streams" }, "Streams"),
      ),
      heading(name),
      notice,
      body,
    ),
    async refresh(overview, signal) {
      // The broker has no details of an unreadable stream.
      const problem = overview.streams.find((stream) => stream.name === name)?.problem ?? null;
      if (problem !== null) return setNotice(`This stream cannot be read: ${problem}`);
      try {
        const [stream] = await Promise.all([
          get(pathOf("streams", name), {}, signal),
          history.refresh(signal),
        ]);
        setNotice("");
        update(overview, stream);
        await messages.refresh(overview.access, stream, signal);
      } catch (error) {
        if (!(error instanceof RejectedError && error.status === 404)) throw error;
        // The stream was deleted, or is not created yet.
        setNotice(error.message);
      }
    },
    close() {
      rate.close();
      behind.close();
    },
  };
}

function tilesPart(app) {
  const rate = tilePart("Appended", "tile-appended");
  const stored = tilePart("Stored", "tile-stored");
  const meter = meterPart("Share of the maximum size");
  stored.element.append(element("dd", {}, meter.element));
  const messages = tilePart("Messages", "tile-messages");
  const oldest = agoTile("Oldest");
  const newest = agoTile("Newest");
  const retention = tilePart("When full");
  const all = [rate, stored, messages, oldest, newest, retention];
  return {
    element: element(
      "dl",
      { class: "tiles" },
      all.map((tile) => tile.element),
    ),
    update(stream) {
      const { rates, persistence, flushOnWrite, segments, waitingReads } = stream;
      rate.update(formatRate(rates.messagesAppended), formatByteRate(rates.bytesAppended));
      const share = `${formatShare(stream.totalBytes, stream.maxSize)} of ${formatBytes(stream.maxSize)}`;
      stored.update(
        formatBytes(stream.totalBytes),
        `${share}, ${persistence === "File" ? "on disk" : "in memory"}`,
      );
      meter.update(
        stream.totalBytes,
        stream.maxSize,
        share,
        stream.strategyOnFull === "RejectNewData",
      );
      messages.update(
        formatCount(stream.messages),
        `${plural(segments, "segment")}${flushOnWrite ? ", flushed on write" : ""}${waitingReads ? ` · ${plural(waitingReads, "read")} waiting` : ""}`,
      );
      oldest.update(
        stream.oldestTime,
        stream.messages ? stream.oldestSequenceNumber : null,
        app.now(),
      );
      newest.update(
        stream.newestTime,
        stream.messages ? stream.newestSequenceNumber : null,
        app.now(),
      );
      const ttl = stream.timeToLiveMillis;
      retention.update(
        stream.strategyOnFull === "OverwriteOldestData" ? "Overwrites oldest" : "Rejects new",
        ttl ? `time to live ${formatDuration(ttl)}` : "no time to live",
      );
    },
  };
}

function agoTile(label) {
  const tile = tilePart(label);
  const ago = agoPart();
  tile.value.append(ago.element);
  return {
    element: tile.element,
    update(millis, number, now) {
      ago.update(millis, now);
      setText(tile.note, number === null ? "" : `message ${formatCount(number)}`);
    },
  };
}

function definitionPart() {
  const text = element("pre", { class: "definition", "data-testid": "definition" });
  return {
    element: element(
      "details",
      { class: "panel" },
      element("summary", {}, element("h2", {}, "Definition")),
      text,
    ),
    update: (definition) => setText(text, JSON.stringify(definition, null, 2)),
  };
}
