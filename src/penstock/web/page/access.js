// The forms for a token: a page if the broker requires a token for everything, a dialog if a
// single action needs a token.

import { element, setHidden, setText } from "./dom.js";
import { readToken, storeToken } from "./token.js";

/** A field for a token; calls `done` when the token was changed or removed. */
function tokenForm(id, done) {
  const field = element("input", {
    type: "password",
    id,
    name: "token",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const forget = element("button", { type: "button", onclick: () => use("") }, "Remove token");
  const use = (text) => {
    storeToken(text);
    field.value = "";
    done();
  };
  const form = element(
    "form",
    {
      class: "token-form",
      onsubmit: (event) => {
        event.preventDefault();
        use(field.value);
      },
    },
    element("label", { for: id }, "Token"),
    element(
      "div",
      { class: "row" },
      field,
      element("button", { type: "submit", class: "primary" }, "Use token"),
      forget,
    ),
  );
  return { form, update: () => setHidden(forget, readToken() === "") };
}

function tokenHelp(root) {
  return element(
    "p",
    {},
    "The first token has the role admin and is in the file ",
    element("code", {}, root ? `${root}/token` : "token"),
    root ? "" : " in the root directory of the broker",
    "; ",
    element("code", {}, "penstock env"),
    " prints it, and ",
    element("code", {}, "penstock tokens create"),
    " creates others. This tab keeps the token until it is closed.",
  );
}

/** Replaces a view that the token does not allow. */
export function accessPage(error, done) {
  const { form, update } = tokenForm("token-of-page", done);
  update();
  const reason = readToken()
    ? "The broker rejected this token."
    : "This broker shows the dashboard only with a token.";
  return element(
    "section",
    { class: "panel access", "data-testid": "access" },
    element("h1", { tabindex: "-1" }, "Token required"),
    // The broker's message names the operation that the token does not allow.
    element("p", {}, error.status === 401 ? reason : error.message),
    tokenHelp(null),
    form,
  );
}

export class AccessDialog {
  #reason = element("p", { class: "reason" });
  #role = element("p", {});
  #where = element("div", {});
  #form;
  #dialog;

  constructor(done) {
    this.#form = tokenForm("token-of-dialog", () => {
      this.#dialog.close();
      done();
    });
    const close = element(
      "button",
      { type: "button", onclick: () => this.#dialog.close() },
      "Close",
    );
    this.#dialog = element(
      "dialog",
      { class: "panel access", "aria-labelledby": "access-title", "data-testid": "access-dialog" },
      element("h2", { id: "access-title" }, "Token"),
      this.#reason,
      this.#role,
      this.#where,
      this.#form.form,
      element("div", { class: "row end" }, close),
    );
    document.body.append(this.#dialog);
  }

  /** `reason` is a sentence about the action that needs the token. */
  open(overview, reason = "") {
    setText(this.#reason, reason);
    setHidden(this.#reason, reason === "");
    setText(this.#role, roleSentence(overview?.access));
    this.#where.replaceChildren(tokenHelp(overview?.root));
    this.#form.update();
    this.#dialog.showModal();
  }
}

function roleSentence(access) {
  if (!access) return "";
  if (access.role === null) return "You use the dashboard without a token.";
  return `Your token has the role ${access.role}.`;
}

export function needsAdmin(access, action) {
  const own = access.role === null ? "" : `; your token has the role ${access.role}`;
  return `${action} needs a token with the role admin${own}.`;
}
