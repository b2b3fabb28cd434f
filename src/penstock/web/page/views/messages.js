// The messages of a stream, the newest or from a sequence number on, as text, JSON or hex. The list
// is static unless it follows new messages.

import { AccessError, get, getBytes, pathOf, RejectedError } from "../api.js";
import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import { formatBytes, formatCount, plural } from "../format.js";
import { agoPart, choicePart } from "../parts.js";
import { asHex, asJson, asText, decodeBase64 } from "../payload.js";

const NEEDS_TOKEN = "Messages need a token that allows reading this stream.";
const PAGE_SIZE = 20;
// The limit of one request.
const MAX_PAGE_SIZE = 100;
// Narrow screens show fewer bytes per line of hex.
const NARROW = matchMedia("(max-width: 640px)");

export class MessagesPart {
  #name;
  #app;
  // Newest first.
  #messages = [];
  #format = null;
  #isFollowing = false;
  // The request of the next round, or null.
  #pending = { last: PAGE_SIZE };
  #newest = -1;
  #oldest = 0;
  #nodes = messagesNodes();
  #list;

  /** Shows messages from the sequence number `from` on, or the newest. */
  constructor(app, name, from = null) {
    this.#app = app;
    this.#name = name;
    if (/^\d+$/.test(from ?? "")) this.#pending = { from, count: PAGE_SIZE };
    this.#list = new KeyedList(
      this.#nodes.list,
      (message) => message.sequenceNumber,
      (message) => this.#message(message),
    );
    const { tools, choice, number } = this.#nodes;
    this.#nodes.choose = choicePart("Show payloads as", "format", FORMATS, "text", (format) =>
      this.#setFormat(format),
    );
    choice.append(this.#nodes.choose.element);
    tools.newest.onclick = () => this.#request({ last: PAGE_SIZE });
    tools.fresh.onclick = () => this.#request({ last: PAGE_SIZE });
    tools.older.onclick = () => this.#request({ before: this.#last(), count: PAGE_SIZE });
    tools.newer.onclick = () => this.#request({ from: this.#first() + 1, count: PAGE_SIZE });
    tools.from.onsubmit = (event) => {
      event.preventDefault();
      this.#request({ from: Number(number.value), count: PAGE_SIZE });
    };
    tools.follow.onchange = () => {
      this.#isFollowing = tools.follow.checked;
      if (this.#isFollowing) this.#request({ last: PAGE_SIZE });
    };
    tools.token.onclick = () =>
      app.openTokenDialog(NEEDS_TOKEN);
    this.element = this.#nodes.section;
  }

  /** Sends the pending request, if there is one. */
  async refresh(access, stream, signal) {
    setHidden(this.#nodes.locked, access.mayReadMessages);
    setHidden(this.#nodes.inside, !access.mayReadMessages);
    if (!access.mayReadMessages) return;
    // The stream was deleted and created again.
    if (stream.newestSequenceNumber < this.#first()) {
      this.#messages = [];
      this.#pending = { last: PAGE_SIZE };
    }
    if (this.#isFollowing && this.#pending === null) this.#pending = this.#next(stream);
    const pending = this.#pending;
    if (pending !== null) {
      try {
        this.#show(await get(pathOf("streams", this.#name, "messages"), pending, signal), pending);
      } catch (error) {
        if (!(error instanceof RejectedError || error instanceof AccessError)) throw error;
        this.#setNote(error.message);
      }
      if (this.#pending === pending) this.#pending = null;
    }
    this.#newest = stream.newestSequenceNumber;
    this.#oldest = stream.oldestSequenceNumber;
    this.#update(stream);
  }

  #request(pending) {
    if (pending.last === undefined) this.#nodes.tools.follow.checked = this.#isFollowing = false;
    this.#pending = pending;
    this.#app.refresh();
  }

  #next({ newestSequenceNumber }) {
    const shown = this.#first();
    if (newestSequenceNumber <= shown) return null;
    // More than one request can return: skip to the newest.
    if (newestSequenceNumber - shown > MAX_PAGE_SIZE) return { last: PAGE_SIZE };
    return { from: shown + 1, count: MAX_PAGE_SIZE };
  }

  #show({ messages, problem }, request) {
    const received = messages
      .reverse()
      .map((message) => ({ ...message, bytes: decodeBase64(message.payload) }));
    const continues = this.#isFollowing && received.at(-1)?.sequenceNumber === this.#first() + 1;
    // If the request found no messages, the previous ones stay.
    if (continues) this.#messages = [...received, ...this.#messages].slice(0, MAX_PAGE_SIZE);
    else if (received.length > 0) this.#messages = received;
    this.#setNote(
      problem ??
        (received.length === 0 && request.from !== undefined
          ? `No messages from number ${formatCount(request.from)} on.`
          : ""),
    );
    if (this.#format === null && received.length > 0) {
      // Binary payloads start in hex.
      this.#format = received.some(({ bytes, isCut }) => asText(bytes, isCut) !== null)
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

  #setNote(sentence) {
    setText(this.#nodes.note, sentence);
    setHidden(this.#nodes.note, sentence === "");
  }

  #setFormat(format) {
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
    setText(tools.fresh, `${plural(unseen, "newer message")}: show newest`);
    tools.older.disabled = isEmpty || this.#last() <= this.#oldest;
    tools.newer.disabled = isEmpty || unseen <= 0;
  }

  #message(message) {
    const ago = agoPart();
    const payload = element("pre", { class: "payload" });
    const remark = element("span", { class: "remark" });
    const download = message.isCut
      ? element(
          "button",
          { type: "button", class: "quiet", onclick: () => this.#download(message, remark) },
          "Download payload",
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
          download,
        ),
        payload,
      ),
      update: () => ago.update(message.ingestTime, this.#app.now()),
    };
  }

  async #download({ sequenceNumber }, remark) {
    try {
      // A link cannot send the token.
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
  if (text === null) return hex(join(cut, "not text, shown as hex"));
  if (format === "text") return { text, note: cut };
  const json = asJson(bytes);
  if (json !== null) return { text: json, note: cut };
  return { text, note: join(cut, isCut ? "shown as text" : "not JSON, shown as text") };
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
  const empty = element("p", { class: "empty", hidden: true }, "No messages.");
  const shown = element("span", { class: "count" });
  const locked = element(
    "div",
    { class: "locked", hidden: true },
    element("p", {}, NEEDS_TOKEN),
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
    locked,
    inside,
  );
  return { section, tools, choice, number, list, note, empty, shown, locked, inside };
}
