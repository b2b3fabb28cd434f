// The small parts that pages are made of. Each is made once and has an `update`.

import { element, setAttribute, setHidden, setText } from "./dom.js";
import { formatAgo, formatBytes, formatShare, formatTime } from "./format.js";

/** A time as it is long ago, with the exact one for whoever points at it. */
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

/** How much of something is used, as a bar; from 90 % on it warns if `warns`. */
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
        // Something is not nothing, however large the whole.
        filling.style.width = part > 0 ? `max(3px, ${percent}%)` : "0";
      }
      setAttribute(node, "aria-valuenow", Math.round(100 * share));
      setAttribute(node, "aria-valuetext", text);
      setAttribute(node, "data-level", warns && share >= 0.9 ? "high" : null);
    },
  };
}

/** What is stored against what may be: a bar and `17 MiB of 256 MiB`. */
export function storedPart() {
  const meter = meterPart("Stored, of the maximum");
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
      // One that drops its oldest messages is meant to be full.
      const warns = stream.strategyOnFull === "RejectNewData";
      meter.update(stream.totalBytes, stream.maxSize, words, warns);
      setText(text, words);
      setText(share, formatShare(stream.totalBytes, stream.maxSize));
    },
  };
}

/** A word for a state, with a dot in its colour: never the colour alone. */
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

const WORD_OF_KIND = {
  http: "HTTP",
  iot_analytics: "Channel",
  iot_sitewise: "SiteWise",
  kinesis: "Kinesis",
  s3_task_executor: "S3",
};

/** A kind of exports. */
export function wordOfKind(kind) {
  return WORD_OF_KIND[kind] ?? kind;
}

/** A number with its name, and a line that says more. */
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

/** Facts as name and value; `update` takes `[name, value]` pairs, null leaving one out. */
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

/** What stands where there is nothing yet: what that means, and what to do. */
export function emptyPart(sentence, command = null, rest = "") {
  return element(
    "p",
    { class: "empty" },
    sentence,
    command ? element("code", {}, command) : null,
    rest,
  );
}

/** The head of a page: its heading takes the focus when the page is entered. */
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

/** A box that filters what is below it; `/` goes to it from anywhere. */
export function filterPart(label, placeholder, oninput) {
  const input = element("input", {
    type: "search",
    class: "filter",
    "aria-label": label,
    "aria-keyshortcuts": "/",
    placeholder,
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => oninput(wordsOf(input.value)),
  });
  return { element: input, set: (text) => ((input.value = text), oninput(wordsOf(text))) };
}

function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether each word occurs somewhere in the text. */
export function matches(text, words) {
  const lowered = text.toLowerCase();
  return words.every((word) => lowered.includes(word));
}
