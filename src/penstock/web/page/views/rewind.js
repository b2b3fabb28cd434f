// The button that rewinds an export, and its dialog.

import { needsAdmin } from "../access.js";
import { AccessError, pathOf, post } from "../api.js";
import { element, setAttribute, setHidden, setText } from "../dom.js";
import { formatCount } from "../format.js";

/** `update(export, stream)` updates the positions, also while the dialog is open. */
export function rewindButton(app, name, identifier, accessOf) {
  let bounds = { position: 0, oldest: 0, end: 0 };
  const input = element("input", {
    type: "number",
    min: "0",
    step: "1",
    required: true,
    "aria-label": "Continue with message",
    oninput: showEffect,
  });
  const effect = element("p", { role: "status", "data-testid": "rewind-effect" });
  const remark = element("p", { class: "note bad", role: "alert", hidden: true });
  const confirm = element("button", { type: "submit" }, "Rewind");
  const close = element("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = element(
    "form",
    { class: "stack", onsubmit: move },
    element(
      "div",
      { class: "row" },
      input,
      element("button", { type: "button", onclick: () => choose(bounds.oldest) }, "Earliest"),
      element("button", { type: "button", onclick: () => choose(bounds.end) }, "Latest"),
    ),
    effect,
    remark,
    element("div", { class: "row end" }, close, confirm),
  );
  const dialog = element(
    "dialog",
    { class: "panel access", "aria-label": `Rewind ${identifier}`, "data-testid": "rewind-dialog" },
    element("h2", {}, `Rewind ${identifier}`),
    element("p", {}, "The export continues with this message. It can move back or forward."),
    form,
  );
  const button = element(
    "button",
    { type: "button", "aria-label": `Rewind ${identifier}`, onclick: open },
    "Rewind",
  );

  function open() {
    const access = accessOf();
    if (!access.mayChange) {
      app.openTokenDialog(needsAdmin(access, "Rewinding an export"));
      return;
    }
    setHidden(remark, true);
    dialog.showModal();
    choose(Math.min(bounds.position, bounds.end));
    input.select();
  }

  function choose(number) {
    input.value = String(number);
    showEffect();
  }

  function showEffect() {
    setText(effect, input.value === "" ? "" : effectSentence(Number(input.value), bounds));
  }

  async function move(event) {
    event.preventDefault();
    setHidden(remark, true);
    setAttribute(confirm, "aria-disabled", "true");
    try {
      await post(pathOf("streams", name, "exports", identifier, "rewind"), { to: input.value });
      dialog.close();
      app.refresh();
    } catch (error) {
      if (error instanceof AccessError) app.openTokenDialog(error.message);
      setText(remark, `Cannot rewind the export: ${error.message}`);
      setHidden(remark, false);
    } finally {
      setAttribute(confirm, "aria-disabled", null);
    }
  }

  return {
    element: element("span", {}, button, dialog),
    update(it, { oldestSequenceNumber, newestSequenceNumber }) {
      const end = newestSequenceNumber + 1;
      bounds = { position: end - it.messagesBehind, oldest: oldestSequenceNumber, end };
      setAttribute(input, "max", end);
      if (dialog.open) showEffect();
    },
  };
}

function effectSentence(number, { position, oldest, end }) {
  const target = Math.min(Math.max(number, oldest), end);
  if (number > end) return `The stream has no message ${formatCount(number)}: the next message is ${formatCount(end)}.`;
  if (target < position) return `${messages(position - target)} exported again.`;
  if (target > position) return `${messages(target - position)} skipped.`;
  return "The export is at this message: only messages in flight are exported again.";
}

function messages(count) {
  return count === 1 ? "1 message is" : `${formatCount(count)} messages are`;
}
