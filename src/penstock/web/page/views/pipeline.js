// The pipelines, their tasks, and the latest deliveries.

import { get } from "../api.js";
import { element, KeyedList, setAttribute, setHidden, setText, shape } from "../dom.js";
import { formatClock, formatCount, formatElapsed, formatTime, plural } from "../format.js";
import {
  agoPart,
  choicePart,
  emptyPart,
  factsPart,
  heading,
  statePart,
} from "../parts.js";
import { streamLink } from "../router.js";
import { LiveTable, textCell } from "../table.js";

const MAX_BARS = 60;
const BAR_HEIGHT = 56;
const MAX_LISTED = 50;
const MAX_ENDED_TASKS = 3;

export function pipelineView(app) {
  const list = element("div", { class: "stack" });
  const pipelines = new KeyedList(
    list,
    ({ id }) => id,
    () => pipelinePart(app),
  );
  const empty = emptyPart(
    "No pipeline is connected. ",
    "penstock pipeline",
    " starts one; penstock up starts one with the broker.",
  );
  const deliveries = deliveriesPart(app);
  return {
    title: "Pipeline",
    element: element(
      "div",
      { class: "view" },
      heading("Pipeline"),
      list,
      empty,
      deliveries.element,
    ),
    async refresh(_, signal) {
      const answer = await get("/api/pipeline", {}, signal);
      setHidden(empty, answer.pipelines.length > 0);
      setHidden(deliveries.element, answer.pipelines.length === 0);
      pipelines.update(
        answer.pipelines.map((it) => ({
          ...it,
          deliveries: answer.deliveries.filter(({ pipeline }) => pipeline === it.id),
        })),
      );
      deliveries.update(answer.deliveries);
    },
  };
}

function pipelinePart(app) {
  const title = element("h2", {});
  const state = statePart();
  const link = element("a", { target: "_blank", rel: "noopener noreferrer" }, "Spark UI ↗");
  const facts = factsPart("Spark", "Master", "Started", "Last seen");
  const taskList = element("ul", { class: "pipeline-tasks" });
  const tasks = new KeyedList(
    taskList,
    ({ id }) => id,
    () => taskPart(app),
  );
  const durationsTitle = element("h3", {}, "Durations of the latest deliveries");
  const durationList = element("ul", { class: "durations" });
  const durations = new KeyedList(durationList, ({ kind }) => kind, durationsPart);
  return {
    element: element(
      "section",
      { class: "panel", "data-testid": "pipeline" },
      element("div", { class: "panel-head" }, title, state.element, link),
      facts.element,
      element("h3", {}, "Tasks"),
      taskList,
      durationsTitle,
      durationList,
    ),
    update(pipeline) {
      setText(title, `Pipeline ${pipeline.id}`);
      state.update(
        pipeline.isConnected ? "good" : "bad",
        pipeline.isConnected ? "connected" : "disconnected",
      );
      const page = safeLink(pipeline.sparkPage);
      setHidden(link, page === null || !pipeline.isConnected);
      setAttribute(link, "href", page);
      facts.update({
        Spark: pipeline.sparkVersion,
        Master: pipeline.master,
        Started: pipeline.startedAt ? formatTime(pipeline.startedAt) : null,
        "Last seen":
          pipeline.isConnected || !pipeline.lastSeen ? null : formatTime(pipeline.lastSeen),
      });
      tasks.update(shownTasks(pipeline.tasks));
      const groups = byKind(pipeline.deliveries);
      setHidden(durationsTitle, groups.length === 0);
      durations.update(groups);
    },
  };
}

// The URL comes from a pipeline and is untrusted: it must not be a script.
function safeLink(address) {
  return address !== null && /^https?:\/\//i.test(address) ? address : null;
}

/** All connected tasks by start time, then the latest ended tasks. */
function shownTasks(tasks) {
  const ended = tasks
    .filter(({ isConnected }) => !isConnected)
    .sort((one, other) => other.lastSeen - one.lastSeen);
  return [
    ...tasks
      .filter(({ isConnected }) => isConnected)
      .sort((one, other) => one.startedAt - other.startedAt),
    ...ended.slice(0, MAX_ENDED_TASKS),
  ];
}

function byKind(deliveries) {
  const kinds = [...new Set(deliveries.map(({ kind }) => kind))].sort();
  return kinds.map((kind) => ({
    kind,
    deliveries: deliveries.filter((it) => it.kind === kind).slice(-MAX_BARS),
  }));
}

// Tasks

function taskPart(app) {
  const name = element("h4", {});
  const state = statePart();
  const verb = element("span", {});
  const time = agoPart();
  const numbers = element("span", {});
  const list = element("ul", { class: "assignments" });
  const assignments = new KeyedList(
    list,
    ({ lease }) => lease,
    (it) => assignmentPart(app, it),
  );
  const rest = element("p", { class: "muted" });
  return {
    element: element(
      "li",
      { class: "pipeline-task", "data-testid": "task" },
      element("div", { class: "row" }, name, state.element),
      element(
        "div",
        {},
        element("p", { class: "muted" }, verb, time.element, numbers),
        list,
        rest,
      ),
    ),
    update(task) {
      const { isConnected } = task;
      setText(name, `Task ${task.id}`);
      state.update(isConnected ? "good" : "off", isConnected ? "connected" : "ended");
      setText(verb, isConnected ? "started " : "ended ");
      time.update(isConnected ? task.startedAt : task.lastSeen, app.now());
      setText(
        numbers,
        ` · ${plural(task.deliveries, "delivery", "deliveries")} · ${plural(task.messages, "message")}`,
      );
      assignments.update(task.assignments);
      setHidden(list, task.assignments.length === 0);
      const words = unlistedWork(task);
      setHidden(rest, words === "");
      setText(rest, words);
    },
  };
}

/** The work of a task that is not listed. */
function unlistedWork({ isConnected, assignments, otherAssignments }) {
  if (!isConnected) return "";
  if (otherAssignments > 0) {
    return `Delivering ${plural(otherAssignments, "slice")} of streams that the token does not allow`;
  }
  return assignments.length === 0 ? "Waiting for work" : "";
}

function assignmentPart(app, { stream, exportIdentifier, kind, kindLabel, messages }) {
  const elapsed = element("span", { class: "elapsed" });
  return {
    element: element(
      "li",
      { "data-testid": "assignment" },
      element("a", { href: streamLink(stream) }, stream),
      element("span", {}, exportIdentifier),
      element("span", { class: "muted" }, kindLabel),
      element("span", { class: "muted" }, sizeOf(kind, messages)),
      elapsed,
    ),
    update: ({ startedAt }) =>
      setText(elapsed, `for ${formatElapsed(Math.max(0, app.now() - startedAt))}`),
  };
}

function sizeOf(kind, messages) {
  if (messages === 0) return "aborts an upload";
  return plural(messages, kind === "s3_task_executor" ? "task" : "message");
}

// Durations

function durationsPart() {
  const name = element("h4", {});
  const numbers = element("p", { class: "muted" });
  const picture = shape("svg", {
    class: "bars",
    role: "img",
    preserveAspectRatio: "none",
    viewBox: `0 0 ${MAX_BARS} ${BAR_HEIGHT}`,
  });
  const scale = element("span", { class: "muted bars-scale" });
  const bars = new KeyedList(picture, keyOfDelivery, barPart);
  return {
    element: element(
      "li",
      { class: "duration", "data-testid": "durations" },
      element("div", {}, name, numbers),
      element("div", { class: "bars-frame" }, picture, scale),
    ),
    update({ deliveries }) {
      const { kindLabel } = deliveries[0];
      const sorted = deliveries
        .map(({ durationMillis }) => durationMillis)
        .sort((one, other) => one - other);
      const longest = formatElapsed(sorted.at(-1));
      const median = formatElapsed(sorted[sorted.length >> 1]);
      const failed = deliveries.filter(({ error }) => error !== "").length;
      setText(name, kindLabel);
      setText(numbers, `median ${median}${failed > 0 ? ` · ${formatCount(failed)} failed` : ""}`);
      setText(scale, longest);
      setAttribute(
        picture,
        "aria-label",
        `Durations of the last ${plural(deliveries.length, "delivery", "deliveries")} to ${kindLabel}: median ${median}, longest ${longest}, ${failed} failed`,
      );
      bars.update(
        deliveries.map((it, index) => ({
          ...it,
          x: MAX_BARS - deliveries.length + index,
          longest: sorted.at(-1),
        })),
      );
    },
  };
}

function barPart(delivery) {
  const bar = shape(
    "rect",
    { class: "bar", width: 0.72, "data-failed": delivery.error !== "" },
    shape("title", {}, titleOf(delivery)),
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

function titleOf({ stream, exportIdentifier, kind, startedAt, durationMillis, messages, error }) {
  const result = error === "" ? "" : `; ${error}`;
  return `${stream}, ${exportIdentifier} at ${formatClock(startedAt)}: ${formatElapsed(durationMillis)}, ${sizeOf(kind, messages)}${result}`;
}

function keyOfDelivery({ lease }) {
  return lease;
}

// Deliveries

function deliveriesPart(app) {
  let deliveries = [];
  let choice = "all";
  const table = deliveriesTable();
  const choices = choicePart(
    "Deliveries to show",
    "deliveries",
    [
      ["all", "All"],
      ["failed", "Failed"],
    ],
    choice,
    (chosen) => {
      choice = chosen;
      show();
    },
  );

  function show() {
    const isFailed = choice === "failed";
    const shown = isFailed ? deliveries.filter(({ error }) => error !== "") : deliveries;
    table.update(
      shown.slice(-MAX_LISTED),
      app.now(),
      isFailed ? "No failed deliveries." : "No deliveries yet.",
    );
  }

  return {
    element: element(
      "section",
      { class: "panel flush", "aria-labelledby": "deliveries-title" },
      element(
        "div",
        { class: "panel-head" },
        element("h2", { id: "deliveries-title" }, "Latest deliveries"),
        choices.element,
      ),
      table.element,
    ),
    update(changed) {
      deliveries = changed;
      show();
    },
  };
}

function deliveriesTable() {
  return new LiveTable({
    label: "Latest deliveries",
    className: "compact deliveries",
    keyOf: keyOfDelivery,
    sortedBy: "ended",
    rowState: ({ error }) => (error === "" ? null : "bad"),
    columns: [
      { id: "stream", label: "Stream", cell: streamCell, order: ({ stream }) => stream },
      {
        id: "export",
        label: "Export",
        cell: () => textCell(({ exportIdentifier }) => exportIdentifier),
        order: ({ exportIdentifier }) => exportIdentifier,
      },
      {
        id: "kind",
        label: "Kind",
        cell: () => textCell(({ kindLabel }) => kindLabel),
        order: ({ kindLabel }) => kindLabel,
      },
      { id: "result", label: "Result", cell: resultCell, order: ({ error }) => error },
      {
        id: "size",
        label: "Messages",
        isNumber: true,
        descends: true,
        cell: () => textCell(({ messages }) => (messages === 0 ? "–" : formatCount(messages))),
        order: ({ messages }) => messages,
      },
      {
        id: "duration",
        label: "Duration",
        isNumber: true,
        descends: true,
        cell: () => textCell(({ durationMillis }) => formatElapsed(durationMillis)),
        order: ({ durationMillis }) => durationMillis,
      },
      {
        id: "task",
        label: "Task",
        isNumber: true,
        cell: () => textCell(({ task }) => task),
        order: ({ task }) => task,
      },
      {
        id: "ended",
        label: "Ended",
        isNumber: true,
        descends: true,
        cell: endedCell,
        order: endOf,
      },
    ],
  });
}

function streamCell({ stream }) {
  return { element: element("a", { href: streamLink(stream), title: stream }, stream) };
}

function resultCell({ error }) {
  const state = statePart();
  state.update(error === "" ? "good" : "bad", error === "" ? "delivered" : "failed");
  return {
    element: element(
      "div",
      {},
      state.element,
      error === "" ? null : element("span", { class: "problem", title: error }, error),
    ),
  };
}

function endedCell() {
  const part = agoPart();
  return { element: part.element, update: (it, now) => part.update(endOf(it), now) };
}

function endOf({ startedAt, durationMillis }) {
  return startedAt + durationMillis;
}
