// Small components of views. Each is created once and has an `update`.

import { element, setAttribute, setHidden, setText } from "./dom.js";
import { formatAgo, formatBytes, formatShare, formatTime } from "./format.js";

/** A relative time, with the exact time as its tooltip. */
export function agoPart() {
  const node = element("time", {});
  return {
    element: node,
    update(millis, now) {
      const isKnown = millis !== null && millis !== undefined;
      setText(node, isKnown ? formatAgo(millis, now) : "–");
      setAttribute(node, "title", isKnown ? formatTime(millis) : null);
      setAttribute(node, "datetime", isKnown ? new Date(millis).toISOString() : null);
    },
  };
}

/** A bar that shows a share. With `warns` it has the warning color from 90 % up. */
export function meterPart(label) {
  const filling = element("span", { class: "meter-filling" });
  const node = element(
    "span",
    {
      class: "meter",
      role: "meter",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
    },
    filling,
  );
  return {
    element: node,
    update(part, whole, text, warns = false) {
      const share = whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
      const percent = (100 * share).toFixed(1);
      if (filling.dataset.percent !== percent) {
        filling.dataset.percent = percent;
        // A tiny share is visible too.
        filling.style.width = part > 0 ? `max(3px, ${percent}%)` : "0";
      }
      setAttribute(node, "aria-valuenow", Math.round(100 * share));
      setAttribute(node, "aria-valuetext", text);
      setAttribute(node, "data-level", warns && share >= 0.9 ? "high" : null);
    },
  };
}

/** The size and the maximum size of a stream: a bar and `17 MiB of 256 MiB`. */
export function storedPart() {
  const meter = meterPart("Share of the maximum size");
  const text = element("span", { class: "meter-text" });
  const share = element("span", { class: "meter-share" });
  return {
    element: element(
      "div",
      { class: "stored" },
      element("span", { class: "meter-line" }, text, share),
      meter.element,
    ),
    update(stream) {
      const words = `${formatBytes(stream.totalBytes)} of ${formatBytes(stream.maxSize)}`;
      // A stream that overwrites its oldest messages is usually full.
      const warns = stream.strategyOnFull === "RejectNewData";
      meter.update(stream.totalBytes, stream.maxSize, words, warns);
      setText(text, words);
      setText(share, formatShare(stream.totalBytes, stream.maxSize));
    },
  };
}

/** A state as a word with a colored dot: the color alone is not accessible. */
export function statePart() {
  const node = element("span", { class: "state" });
  return {
    element: node,
    update(kind, text) {
      setAttribute(node, "data-kind", kind);
      setText(node, text);
    },
  };
}

const KIND_OF_EXPORT_STATE = {
  failing: "bad",
  paused: "off",
  waiting: "busy",
  due: "busy",
  exporting: "busy",
  "up-to-date": "good",
};
const WORD_OF_EXPORT_STATE = { "up-to-date": "up to date" };

export function kindOfExport(state) {
  return KIND_OF_EXPORT_STATE[state] ?? "off";
}

export function wordOfExport(state) {
  return WORD_OF_EXPORT_STATE[state] ?? state;
}

/** A number with a label and a note. */
export function tilePart(label, id = undefined) {
  const value = element("dd", { class: "tile-value" });
  const note = element("dd", { class: "tile-note" });
  return {
    element: element(
      "div",
      { class: "tile", "data-testid": id },
      element("dt", {}, label),
      value,
      note,
    ),
    value,
    note,
    update(text, more = "") {
      setText(value, text);
      setText(note, more);
    },
  };
}

/** Names and values; `update` takes an object, in which null hides a value. */
export function factsPart(...names) {
  const rows = new Map(
    names.map((name) => {
      const value = element("dd", {});
      return [name, { value, row: element("div", {}, element("dt", {}, name), value) }];
    }),
  );
  return {
    element: element(
      "dl",
      { class: "facts" },
      [...rows.values()].map(({ row }) => row),
    ),
    update(facts) {
      for (const [name, text] of Object.entries(facts)) {
        const { value, row } = rows.get(name);
        setHidden(row, text === null);
        setText(value, text ?? "");
      }
    },
  };
}

/** A text in place of an empty list, with a command that helps. */
export function emptyPart(sentence, command = null, rest = "") {
  return element(
    "p",
    { class: "empty" },
    sentence,
    command ? element("code", {}, command) : null,
    rest,
  );
}

/** The heading of a page, which gets the focus when the page is entered. */
export function heading(text, ...more) {
  return element("div", { class: "heading" }, element("h1", { tabindex: "-1" }, text), ...more);
}

/** One of several choices, as radio buttons in a row. */
export function choicePart(label, name, choices, chosen, onchange) {
  const inputs = choices.map(([value]) =>
    element("input", { type: "radio", name, value, onchange: () => onchange(value) }),
  );
  const node = element(
    "fieldset",
    { class: "choice" },
    element("legend", { class: "unseen" }, label),
    choices.map(([, word], index) =>
      element("label", {}, inputs[index], element("span", {}, word)),
    ),
  );
  const choose = (value) => {
    for (const input of inputs) input.checked = input.value === value;
  };
  choose(chosen);
  return { element: node, choose };
}

/** A filter field; the key `/` focuses it. */
export function filterPart(label, placeholder, oninput) {
  const input = element("input", {
    type: "search",
    class: "filter",
    "aria-label": label,
    "aria-keyshortcuts": "/",
    placeholder,
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => oninput(splitWords(input.value)),
  });
  return { element: input, set: (text) => ((input.value = text), oninput(splitWords(text))) };
}

function splitWords(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether each word occurs somewhere in the text. */
export function matches(text, words) {
  const lowered = text.toLowerCase();
  return words.every((word) => lowered.includes(word));
}
