// Spark: the pipelines that export, and how long the batches of their lanes take.

import { get } from "../api.js";
import { element, KeyedList, setAttribute, setHidden, setText, shape } from "../dom.js";
import { formatClock, formatCount, formatElapsed, formatTime, plural } from "../format.js";
import { agoPart, emptyPart, factsPart, heading, statePart } from "../parts.js";
import { LiveTable, textCell } from "../table.js";

const BARS = 60;
const BAR_HEIGHT = 56;
const LISTED = 50;

export function pipelineView(app) {
  const list = element("div", { class: "stack" });
  const pipelines = new KeyedList(
    list,
    ({ id }) => id,
    () => pipelinePart(app),
  );
  const empty = emptyPart(
    "No pipeline has connected. ",
    "penstock pipeline",
    " starts one; penstock up starts one beside the broker.",
  );
  const table = batchesTable();
  const batches = element(
    "section",
    { class: "panel flush", "aria-labelledby": "batches-title" },
    element("h2", { id: "batches-title" }, "Latest batches"),
    table.element,
  );
  return {
    title: "Pipeline",
    element: element("div", { class: "view" }, heading("Pipeline"), list, empty, batches),
    async refresh(_, signal) {
      const answer = await get("/api/pipeline", {}, signal);
      setHidden(empty, answer.pipelines.length > 0);
      setHidden(batches, answer.pipelines.length === 0);
      pipelines.update(
        answer.pipelines.map((it) => ({
          ...it,
          all: answer.batches.filter(({ pipeline }) => pipeline === it.id),
        })),
      );
      table.update(answer.batches.slice(-LISTED).reverse(), app.now(), "No batch has ended yet.");
    },
  };
}

function pipelinePart(app) {
  const title = element("h2", {});
  const state = statePart();
  const link = element("a", { target: "_blank", rel: "noopener noreferrer" }, "Spark's own page ↗");
  const facts = factsPart("Spark", "Master", "Started", "Last heard of");
  const list = element("ul", { class: "lanes" });
  const lanes = new KeyedList(
    list,
    ({ lane }) => lane,
    () => lanePart(app),
  );
  return {
    element: element(
      "section",
      { class: "panel", "data-testid": "pipeline" },
      element("div", { class: "panel-head" }, title, state.element, link),
      facts.element,
      list,
    ),
    update(pipeline) {
      setText(title, `Pipeline ${pipeline.id}`);
      state.update(
        pipeline.isConnected ? "good" : "bad",
        pipeline.isConnected ? "connected" : "away",
      );
      const page = safeLink(pipeline.sparkPage);
      setHidden(link, page === null || !pipeline.isConnected);
      setAttribute(link, "href", page);
      facts.update({
        Spark: pipeline.sparkVersion,
        Master: pipeline.master,
        Started: pipeline.startedAt ? formatTime(pipeline.startedAt) : null,
        "Last heard of":
          pipeline.isConnected || !pipeline.lastSeen ? null : formatTime(pipeline.lastSeen),
      });
      lanes.update(
        pipeline.lanes.map((lane) => ({
          ...lane,
          all: pipeline.all.filter((batch) => batch.lane === lane.lane).slice(-BARS),
        })),
      );
    },
  };
}

// The address is what a pipeline said: it must not be a script.
function safeLink(address) {
  return address !== null && /^https?:\/\//i.test(address) ? address : null;
}

function lanePart() {
  const name = element("h3", {});
  const numbers = element("p", { class: "muted" });
  const typical = element("p", { class: "muted" });
  const picture = shape("svg", {
    class: "bars",
    role: "img",
    preserveAspectRatio: "none",
    viewBox: `0 0 ${BARS} ${BAR_HEIGHT}`,
  });
  const scale = element("span", { class: "muted bars-scale" });
  const rows = new KeyedList(picture, ({ startedAt, batch }) => `${startedAt}/${batch}`, barPart);
  return {
    element: element(
      "li",
      { class: "lane", "data-testid": "lane" },
      element("div", {}, name, numbers, typical),
      element("div", { class: "bars-frame" }, picture, scale),
    ),
    update({ lane, batches, lastDurationMillis, all }) {
      const durations = all
        .map(({ durationMillis }) => durationMillis)
        .sort((one, other) => one - other);
      const longest = durations.at(-1) ?? 0;
      setText(name, lane);
      setText(
        numbers,
        `${plural(batches, "batch", "batches")}${lastDurationMillis === null ? "" : ` · last ${formatElapsed(lastDurationMillis)}`}`,
      );
      setText(
        typical,
        durations.length > 0 ? `median ${formatElapsed(durations[durations.length >> 1])}` : "",
      );
      setText(scale, longest ? formatElapsed(longest) : "");
      setAttribute(
        picture,
        "aria-label",
        `Durations of the last ${all.length} batches of the lane ${lane}, at most ${formatElapsed(longest)}`,
      );
      rows.update(all.map((batch, index) => ({ ...batch, x: BARS - all.length + index, longest })));
    },
  };
}

function barPart(batch) {
  const bar = shape(
    "rect",
    { class: "bar-of-batch", width: 0.72 },
    shape("title", {}, batchTitle(batch)),
  );
  return {
    element: bar,
    update({ x, durationMillis, longest }) {
      const height = Math.max(1.5, ((BAR_HEIGHT - 2) * durationMillis) / Math.max(1, longest));
      setAttribute(bar, "x", x);
      setAttribute(bar, "y", (BAR_HEIGHT - height).toFixed(2));
      setAttribute(bar, "height", height.toFixed(2));
    },
  };
}

function batchTitle({ batch, startedAt, durationMillis, messages }) {
  const size = messages === null ? "" : `, ${formatCount(messages)} messages`;
  return `Batch ${batch} at ${formatClock(startedAt)}: ${formatElapsed(durationMillis)}${size}`;
}

function batchesTable() {
  const known = (value) => (value === null ? "–" : formatCount(value));
  return new LiveTable({
    label: "Latest batches",
    className: "compact batches",
    keyOf: (batch) => `${batch.pipeline}/${batch.lane}/${batch.batch}/${batch.startedAt}`,
    columns: [
      { id: "lane", label: "Lane", cell: () => textCell(({ lane }) => lane) },
      {
        id: "batch",
        label: "Batch",
        isNumber: true,
        cell: () => textCell(({ batch }) => formatCount(batch)),
      },
      { id: "started", label: "Started", isNumber: true, cell: startedCell },
      {
        id: "duration",
        label: "Duration",
        isNumber: true,
        cell: () => textCell(({ durationMillis }) => formatElapsed(durationMillis)),
      },
      {
        id: "slices",
        label: "Slices",
        isNumber: true,
        cell: () => textCell(({ slices }) => known(slices)),
      },
      {
        id: "size",
        label: "Messages",
        isNumber: true,
        cell: () => textCell(({ messages }) => known(messages)),
      },
    ],
  });
}

function startedCell() {
  const part = agoPart();
  return { element: part.element, update: ({ startedAt }, now) => part.update(startedAt, now) };
}
