// The page of S3 tasks: files and the progress of their uploads.

import { get } from "../api.js";
import { element, setHidden, setText } from "../dom.js";
import { formatBytes, formatCount, plural } from "../format.js";
import {
  agoPart,
  choicePart,
  emptyPart,
  filterPart,
  heading,
  matches,
  meterPart,
  statePart,
} from "../parts.js";
import { messageLink, streamLink } from "../router.js";
import { LiveTable } from "../table.js";

const STATES = {
  Waiting: { kind: "off", word: "waiting" },
  InProgress: { kind: "busy", word: "in progress" },
  Success: { kind: "good", word: "success" },
  Warning: { kind: "warn", word: "warning" },
  Failure: { kind: "bad", word: "failure" },
  Canceled: { kind: "off", word: "canceled" },
};
const OPEN = new Set(["Waiting", "InProgress", "Warning"]);
const NEEDS_TOKEN = "S3 tasks are messages: they need a token that allows reading their streams.";
const CHOICES = [
  ["all", "All"],
  ["open", "Open"],
  ["ended", "Ended"],
];

export function tasksView(app, { query }) {
  const stream = query.get("stream") ?? undefined;
  let words = [];
  let choice = "all";
  let tasks = [];
  let waiting = 0;
  const count = element("p", { class: "count", role: "status" });
  const filter = filterPart(
    "Filter tasks",
    "Filter by file, key, stream or message",
    (given) => ((words = given), show()),
  );
  const choices = choicePart(
    "Tasks to show",
    "tasks",
    CHOICES,
    choice,
    (chosen) => ((choice = chosen), show()),
  );
  const table = tasksTable();
  const empty = emptyPart(
    "No tasks. Each message of a stream with an S3 export is a task: see ",
    "docs/files.md",
    ".",
  );
  const token = element(
    "button",
    {
      type: "button",
      class: "primary",
      onclick: () =>
        app.openTokenDialog(NEEDS_TOKEN),
    },
    "Enter a token",
  );
  const locked = element(
    "div",
    { class: "locked", hidden: true },
    element("p", {}, NEEDS_TOKEN),
    token,
  );
  const inside = element("div", {}, table.element, empty);

  function show() {
    const shown = tasks.filter(
      (task) => isChosen(task, choice) && (words.length === 0 || matches(searchText(task), words)),
    );
    const more = waiting > 0 ? ` · ${formatCount(waiting)} waiting` : "";
    setText(
      count,
      `${shown.length === tasks.length ? plural(tasks.length, "task") : `${shown.length} of ${plural(tasks.length, "task")}`}${more}`,
    );
    setHidden(empty, tasks.length > 0);
    setHidden(table.element, tasks.length === 0);
    table.update(shown, app.now(), "No task matches the filter.");
  }

  const ofStream =
    stream === undefined
      ? null
      : element(
          "p",
          { class: "muted" },
          "Tasks of the stream ",
          element("a", { href: streamLink(stream) }, stream),
          " · ",
          element("a", { href: "#/tasks" }, "all tasks"),
        );
  return {
    title: "Tasks",
    element: element(
      "div",
      { class: "view" },
      heading("S3 tasks", count, choices.element, filter.element),
      ofStream,
      element("section", { class: "panel flush", "aria-label": "S3 tasks" }, locked, inside),
    ),
    async refresh({ access }, signal) {
      setHidden(locked, access.mayReadMessages);
      setHidden(inside, !access.mayReadMessages);
      if (!access.mayReadMessages) return;
      ({ tasks, waiting } = await get("/api/tasks", { stream }, signal));
      show();
    },
  };
}

function isChosen({ state }, choice) {
  return choice === "all" || OPEN.has(state) === (choice === "open");
}

function searchText({ stream, exportIdentifier, inputUrl, bucket, key, message, state }) {
  return `${stream} ${exportIdentifier} ${inputUrl} ${bucket}/${key} ${message} ${STATES[state]?.word}`;
}

function tasksTable() {
  return new LiveTable({
    label: "S3 tasks",
    className: "tasks",
    keyOf: (task) => `${task.stream}/${task.exportIdentifier}/${task.sequenceNumber}`,
    rowState: ({ state }) => (state === "Failure" ? "bad" : null),
    columns: [
      { id: "state", label: "State", cell: stateCell },
      { id: "file", label: "File", cell: fileCell },
      { id: "progress", label: "Progress", cell: progressCell },
      { id: "stream", label: "Stream", cell: streamCell },
      { id: "time", label: "Updated", isNumber: true, cell: timeCell },
    ],
  });
}

function stateCell() {
  const part = statePart();
  return {
    element: part.element,
    update: ({ state }) => part.update(STATES[state]?.kind ?? "off", STATES[state]?.word ?? state),
  };
}

function fileCell() {
  const source = element("span", { class: "path" });
  const target = element("span", { class: "path muted" });
  const message = element("span", { class: "problem" });
  return {
    element: element("div", { class: "lines" }, source, target, message),
    update(task) {
      setText(source, task.inputUrl);
      setText(target, `→ ${task.bucket}/${task.key}`);
      setHidden(message, !task.message);
      setText(message, task.message ?? "");
    },
  };
}

function progressCell() {
  const meter = meterPart("Uploaded parts");
  const text = element("span", { class: "meter-text" });
  return {
    element: element(
      "div",
      { class: "stored" },
      element("span", { class: "meter-line" }, text),
      meter.element,
    ),
    update({ state, parts, partsArrived, size }) {
      const bytes = size === null ? "" : formatBytes(size);
      const hasParts = parts !== null && parts > 1 && partsArrived !== null;
      const words = hasParts
        ? `${partsArrived} of ${plural(parts, "part")}${bytes ? `, ${bytes}` : ""}`
        : bytes || "–";
      setText(text, words);
      setHidden(meter.element, !hasParts || state === "Success");
      meter.update(partsArrived ?? 0, parts ?? 0, words);
    },
  };
}

function streamCell({ stream, exportIdentifier, sequenceNumber }) {
  return {
    element: element(
      "div",
      { class: "lines" },
      element("a", { href: streamLink(stream) }, stream),
      element(
        "span",
        { class: "muted" },
        `${exportIdentifier} · `,
        element(
          "a",
          { href: messageLink(stream, sequenceNumber) },
          `message ${formatCount(sequenceNumber)}`,
        ),
      ),
    ),
  };
}

function timeCell() {
  const part = agoPart();
  return { element: part.element, update: ({ time }, now) => part.update(time, now) };
}
