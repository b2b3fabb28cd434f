// Where a token is asked for: on a page of its own when the broker shows nothing without one, in a
// dialog when only something more is wanted.

import { element, setHidden, setText } from "./dom.js";
import { readToken, storeToken } from "./token.js";

/** A field for a token; `done` is called when there is another one, or none any more. */
function tokenForm(id, done) {
  const field = element("input", {
    type: "password",
    id,
    name: "token",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const forget = element("button", { type: "button", onclick: () => use("") }, "Forget the token");
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
      element("button", { type: "submit", class: "primary" }, "Use the token"),
      forget,
    ),
  );
  return { form, update: () => setHidden(forget, readToken() === "") };
}

function whereTokensAre(root) {
  return element(
    "p",
    {},
    "The first token, an admin's, lies in the file ",
    element("code", {}, root ? `${root}/token` : "token"),
    root ? "" : " of the broker's directory",
    "; ",
    element("code", {}, "penstock env"),
    " prints it, and ",
    element("code", {}, "penstock tokens create"),
    " makes others. This tab keeps it until it is closed.",
  );
}

/** Stands in place of a page that may not be seen. */
export function accessPage(error, done) {
  const { form, update } = tokenForm("token-of-page", done);
  update();
  const unknown = readToken()
    ? "The broker does not know this token."
    : "The broker shows this page to those who have a token.";
  return element(
    "section",
    { class: "panel access", "data-testid": "access" },
    element("h1", { tabindex: "-1" }, "A token is needed"),
    // What a token may not, the broker says best.
    element("p", {}, error.status === 401 ? unknown : error.message),
    whereTokensAre(null),
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

  /** `reason` says what the token is needed for. */
  open(overview, reason = "") {
    setText(this.#reason, reason);
    setHidden(this.#reason, reason === "");
    setText(this.#role, roleSentence(overview?.access));
    this.#where.replaceChildren(whereTokensAre(overview?.root));
    this.#form.update();
    this.#dialog.showModal();
  }
}

function roleSentence(access) {
  if (!access) return "";
  if (access.role === null) return "You are here without a token.";
  return `Your token has the role ${access.role}.`;
}

export function needsAdmin(access, what) {
  const have = access.role === null ? "" : `; yours has the role ${access.role}`;
  return `${what} changes the stream's definition. That needs a token with the role admin${have}.`;
}
