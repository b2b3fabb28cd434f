// The exports of a stream: destination, lag, errors, and buttons that pause and rewind them.

import { needsAdmin } from "../access.js";
import { AccessError, pathOf, post } from "../api.js";
import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import { formatAgo, formatBytes, formatCount, formatDuration, formatRate } from "../format.js";
import { emptyPart, factsPart, kindOfExport, statePart, wordOfExport } from "../parts.js";
import { tasksLink } from "../router.js";
import { rewindButton } from "./rewind.js";

export class ExportsPart {
  #rows;
  #empty = emptyPart(
    "This stream has no exports. Exports are part of its definition: ",
    "penstock streams update",
    " adds an export.",
  );
  #access = null;
  #stream = null;

  constructor(app, name) {
    const list = element("ul", { class: "exports" });
    this.#rows = new KeyedList(
      list,
      (it) => it.identifier,
      (it) => exportPart(app, name, it, () => this.#access, () => this.#stream),
    );
    this.element = element(
      "section",
      { class: "panel", "aria-labelledby": "exports-title" },
      element("h2", { id: "exports-title" }, "Exports"),
      list,
      this.#empty,
    );
  }

  update(access, stream) {
    this.#access = access;
    this.#stream = stream;
    setHidden(this.#empty, stream.exports.length > 0);
    this.#rows.update(stream.exports);
  }
}

function exportPart(app, name, { identifier, kind }, accessOf, streamOf) {
  const state = statePart();
  const destination = element("span", { class: "destination" });
  const lag = element("span", { class: "lag-value" });
  const lagNote = element("span", { class: "muted" });
  const error = element("p", { class: "error-text" });
  const retry = element("p", { class: "retry" });
  const remark = element("p", { class: "note bad", role: "alert", hidden: true });
  const facts = factsPart("Rate", "Last exported", "Last attempt", "Exported", "Skipped", "Lost", "Priority");
  const change = pauseButton(app, name, identifier, accessOf, remark);
  const rewind = rewindButton(app, name, identifier, accessOf);
  const tasks =
    kind === "s3_task_executor" ? element("a", { href: tasksLink(name) }, "Show tasks") : null;
  const node = element(
    "li",
    { class: "export", "data-testid": "export", "data-identifier": identifier },
    element(
      "div",
      { class: "export-head" },
      element(
        "div",
        {},
        element("h3", {}, identifier),
        element("p", { class: "muted" }, destination),
      ),
      element("div", { class: "row" }, tasks, rewind.element, change.element),
    ),
    element(
      "div",
      { class: "export-state" },
      state.element,
      element("span", { class: "lag" }, lag, lagNote),
    ),
    error,
    retry,
    remark,
    facts.element,
  );
  return {
    element: node,
    update(it) {
      setAttribute(node, "data-state", it.state);
      state.update(kindOfExport(it.state), wordOfExport(it.state));
      setText(destination, it.destination);
      setText(
        lag,
        it.messagesBehind > 0 ? `${formatCount(it.messagesBehind)} behind` : "No messages behind",
      );
      setText(
        lagNote,
        it.messagesBehind > 0 && it.secondsBehind > 0
          ? `, ${formatDuration(1000 * it.secondsBehind)}`
          : "",
      );
      setHidden(error, !it.errorMessage);
      setText(error, it.errorMessage);
      setHidden(retry, it.isPaused || it.retryInMillis === null);
      setText(retry, retrySentence(it));
      facts.update(exportFacts(it, app.now()));
      change.update(it.isPaused);
      rewind.update(it, streamOf());
    },
  };
}

function retrySentence({ retryInMillis, failures }) {
  const times = failures > 1 ? ` Failed ${formatCount(failures)} times in a row.` : "";
  // Rounded up: a retry in half a second is not due now.
  const next =
    retryInMillis > 0
      ? `Next retry in ${formatDuration(1000 * Math.ceil(retryInMillis / 1000))}.`
      : "Next retry now.";
  return next + times;
}

function exportFacts(it, now) {
  const last = it.lastExportedSequenceNumber;
  return {
    Rate: formatRate(it.rates.messagesExported),
    "Last exported": last < 0 ? "none" : `message ${formatCount(last)}`,
    "Last attempt": it.lastExportTime === null ? null : formatAgo(it.lastExportTime, now),
    Exported: `${formatCount(it.exportedMessages)} messages, ${formatBytes(it.exportedBytes)}`,
    Skipped:
      it.skippedMessages > 0
        ? `${formatCount(it.skippedMessages)} rejected by the destination`
        : null,
    Lost:
      it.lostMessages > 0
        ? `${formatCount(it.lostMessages)} evicted or damaged before export`
        : null,
    Priority: it.priority === null ? "none" : String(it.priority),
  };
}

function pauseButton(app, name, identifier, accessOf, remark) {
  let isPaused = false;
  const button = element("button", { type: "button", onclick: change });

  async function change() {
    const action = isPaused ? "resume" : "pause";
    const access = accessOf();
    setHidden(remark, true);
    if (!access.mayChange) {
      app.openTokenDialog(needsAdmin(access, isPaused ? "Resuming an export" : "Pausing an export"));
      return;
    }
    setAttribute(button, "aria-disabled", "true");
    try {
      show((await post(pathOf("streams", name, "exports", identifier, action))).isPaused);
      app.refresh();
    } catch (error) {
      if (error instanceof AccessError) app.openTokenDialog(error.message);
      setText(remark, `Cannot ${action} the export: ${error.message}`);
      setHidden(remark, false);
    } finally {
      setAttribute(button, "aria-disabled", null);
    }
  }

  function show(changed) {
    isPaused = changed;
    setText(button, isPaused ? "Resume" : "Pause");
    setAttribute(button, "aria-label", `${isPaused ? "Resume" : "Pause"} ${identifier}`);
  }

  return { element: button, update: show };
}
