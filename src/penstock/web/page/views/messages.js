// A peek at a stream's messages: the newest, or from a number on; as text, JSON or hex. What is
// shown stays until somebody asks for more, unless it follows.

import { AccessError, get, getBytes, pathOf, RefusedError } from "../api.js";
import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import { formatBytes, formatCount, plural } from "../format.js";
import { agoPart, choicePart } from "../parts.js";
import { asHex, asJson, asText, decodeBase64 } from "../payload.js";

const PAGE = 20;
// As many as one answer brings.
const MOST = 100;
// Hex in lines that fit a phone.
const NARROW = matchMedia("(max-width: 640px)");

export class MessagesPart {
  #name;
  #app;
  // Newest first.
  #messages = [];
  #format = null;
  #isFollowing = false;
  // What to ask for in the next round; null for nothing.
  #wanted = { last: PAGE };
  #newest = -1;
  #oldest = 0;
  #nodes = messagesNodes();
  #list;

  /** From the number `from` on, if it is given. */
  constructor(app, name, from = null) {
    this.#app = app;
    this.#name = name;
    if (/^\d+$/.test(from ?? "")) this.#wanted = { from, count: PAGE };
    this.#list = new KeyedList(
      this.#nodes.list,
      (message) => message.sequenceNumber,
      (message) => this.#message(message),
    );
    const { tools, choice, number } = this.#nodes;
    this.#nodes.choose = choicePart("Show payloads as", "format", FORMATS, "text", (format) =>
      this.#show(format),
    );
    choice.append(this.#nodes.choose.element);
    tools.newest.onclick = () => this.#want({ last: PAGE });
    tools.fresh.onclick = () => this.#want({ last: PAGE });
    tools.older.onclick = () => this.#want({ before: this.#last(), count: PAGE });
    tools.newer.onclick = () => this.#want({ from: this.#first() + 1, count: PAGE });
    tools.from.onsubmit = (event) => {
      event.preventDefault();
      this.#want({ from: Number(number.value), count: PAGE });
    };
    tools.follow.onchange = () => {
      this.#isFollowing = tools.follow.checked;
      if (this.#isFollowing) this.#want({ last: PAGE });
    };
    tools.token.onclick = () =>
      app.askForToken("Messages are shown to those whose token may read the stream.");
    this.element = this.#nodes.section;
  }

  /** One round: asks for what is wanted, if anything is. */
  async refresh(access, stream, signal) {
    setHidden(this.#nodes.barred, access.mayReadMessages);
    setHidden(this.#nodes.inside, !access.mayReadMessages);
    if (!access.mayReadMessages) return;
    // It was deleted and created again: what is shown is not of this stream.
    if (stream.newestSequenceNumber < this.#first()) {
      this.#messages = [];
      this.#wanted = { last: PAGE };
    }
    if (this.#isFollowing && this.#wanted === null) this.#wanted = this.#next(stream);
    const wanted = this.#wanted;
    if (wanted !== null) {
      try {
        this.#take(await get(pathOf("streams", this.#name, "messages"), wanted, signal), wanted);
      } catch (error) {
        if (!(error instanceof RefusedError || error instanceof AccessError)) throw error;
        this.#say(error.message);
      }
      if (this.#wanted === wanted) this.#wanted = null;
    }
    this.#newest = stream.newestSequenceNumber;
    this.#oldest = stream.oldestSequenceNumber;
    this.#update(stream);
  }

  #want(wanted) {
    if (wanted.last === undefined) this.#nodes.tools.follow.checked = this.#isFollowing = false;
    this.#wanted = wanted;
    this.#app.refresh();
  }

  #next({ newestSequenceNumber }) {
    const shown = this.#first();
    if (newestSequenceNumber <= shown) return null;
    // More than one answer brings: the newest are what somebody who follows wants to see.
    if (newestSequenceNumber - shown > MOST) return { last: PAGE };
    return { from: shown + 1, count: MOST };
  }

  #take({ messages, problem }, wanted) {
    const taken = messages
      .reverse()
      .map((message) => ({ ...message, bytes: decodeBase64(message.payload) }));
    const goesOn = this.#isFollowing && taken.at(-1)?.sequenceNumber === this.#first() + 1;
    // Where there is nothing to be seen, what was shown shows the way.
    if (goesOn) this.#messages = [...taken, ...this.#messages].slice(0, MOST);
    else if (taken.length > 0) this.#messages = taken;
    this.#say(
      problem ??
        (taken.length === 0 && wanted.from !== undefined
          ? `There is no message from ${formatCount(wanted.from)} on.`
          : ""),
    );
    if (this.#format === null && taken.length > 0) {
      // Bytes that are no text are best looked at as bytes.
      this.#format = taken.some(({ bytes, isCut }) => asText(bytes, isCut) !== null)
        ? "text"
        : "hex";
      this.#nodes.choose.choose(this.#format);
    }
  }

  #first() {
    return this.#messages[0]?.sequenceNumber ?? -1;
  }

  #last() {
    return this.#messages.at(-1)?.sequenceNumber ?? 0;
  }

  #say(sentence) {
    setText(this.#nodes.note, sentence);
    setHidden(this.#nodes.note, sentence === "");
  }

  #show(format) {
    this.#format = format;
    for (const message of this.#messages) message.render(format);
  }

  #update({ messages }) {
    const { tools, empty, shown } = this.#nodes;
    const isEmpty = this.#messages.length === 0;
    this.#list.update(this.#messages);
    setHidden(empty, messages > 0);
    setText(shown, isEmpty ? "" : `${formatCount(this.#last())} to ${formatCount(this.#first())}`);
    const unseen = this.#newest - this.#first();
    setHidden(tools.fresh, isEmpty || this.#isFollowing || unseen <= 0);
    setText(tools.fresh, `${plural(unseen, "newer message")}: show the newest`);
    tools.older.disabled = isEmpty || this.#last() <= this.#oldest;
    tools.newer.disabled = isEmpty || unseen <= 0;
  }

  #message(message) {
    const ago = agoPart();
    const payload = element("pre", { class: "payload" });
    const remark = element("span", { class: "remark" });
    const whole = message.isCut
      ? element(
          "button",
          { type: "button", class: "quiet", onclick: () => this.#download(message, remark) },
          "Download all of it",
        )
      : null;
    message.render = (format) => {
      const { text, note, isHex } = render(message, format);
      setAttribute(payload, "data-hex", isHex);
      setText(payload, text);
      setText(remark, note);
    };
    message.render(this.#format);
    return {
      element: element(
        "li",
        { class: "message", "data-number": message.sequenceNumber },
        element(
          "div",
          { class: "message-head" },
          element("span", { class: "message-number" }, formatCount(message.sequenceNumber)),
          ago.element,
          element("span", {}, formatBytes(message.size)),
          remark,
          whole,
        ),
        payload,
      ),
      update: () => ago.update(message.ingestTime, this.#app.now()),
    };
  }

  async #download({ sequenceNumber }, remark) {
    try {
      // A link could not carry the token.
      const address = URL.createObjectURL(
        await getBytes(pathOf("streams", this.#name, "messages", sequenceNumber)),
      );
      element("a", { href: address, download: `${this.#name}-${sequenceNumber}` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (error) {
      setText(remark, error.message);
    }
  }
}

const FORMATS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["hex", "Hex"],
];

function render({ bytes, isCut }, format) {
  const cut = isCut ? `the first ${formatBytes(bytes.length)}` : "";
  const hex = (note) => ({ text: asHex(bytes, NARROW.matches ? 8 : 16), note, isHex: true });
  if (format === "hex") return hex(cut);
  const text = asText(bytes, isCut);
  if (text === null) return hex(join(cut, "no text, shown as hex"));
  if (format === "text") return { text, note: cut };
  const json = asJson(bytes);
  if (json !== null) return { text: json, note: cut };
  return { text, note: join(cut, isCut ? "shown as text" : "no JSON, shown as text") };
}

function join(...notes) {
  return notes.filter(Boolean).join("; ");
}

function messagesNodes() {
  const number = element("input", {
    type: "number",
    min: 0,
    step: 1,
    required: true,
    class: "number-field",
    "aria-label": "From number",
    placeholder: "number",
  });
  const tools = {
    newest: element("button", { type: "button" }, "Newest"),
    older: element("button", { type: "button" }, "Older"),
    newer: element("button", { type: "button" }, "Newer"),
    from: element(
      "form",
      { class: "row" },
      element("span", { class: "muted" }, "From"),
      number,
      element("button", { type: "submit" }, "Go"),
    ),
    follow: element("input", { type: "checkbox", role: "switch" }),
    fresh: element("button", { type: "button", class: "fresh", hidden: true }),
    token: element("button", { type: "button", class: "primary" }, "Enter a token"),
  };
  const choice = element("div", {});
  const list = element("ol", { class: "messages", "data-testid": "messages" });
  const note = element("p", { class: "note bad", hidden: true });
  const empty = element("p", { class: "empty", hidden: true }, "No messages are stored.");
  const shown = element("span", { class: "count" });
  const barred = element(
    "div",
    { class: "barred", hidden: true },
    element("p", {}, "Messages are shown to those whose token may read the stream."),
    tools.token,
  );
  const inside = element(
    "div",
    {},
    element(
      "div",
      { class: "toolbar" },
      element("div", { class: "row" }, tools.newest, tools.older, tools.newer),
      tools.from,
      element("label", { class: "switch" }, tools.follow, "Follow"),
      choice,
    ),
    note,
    tools.fresh,
    list,
    empty,
  );
  const section = element(
    "section",
    { class: "panel", "aria-labelledby": "messages-title" },
    element(
      "div",
      { class: "panel-head" },
      element("h2", { id: "messages-title" }, "Messages"),
      shown,
    ),
    barred,
    inside,
  );
  return { section, tools, choice, number, list, note, empty, shown, barred, inside };
}
