// The token of this tab: it is gone with the tab, and never in the address bar for long.

const KEY = "penstock.token";

// Where storage is forbidden, it lasts as long as the page.
let token = "";
try {
  token = sessionStorage.getItem(KEY) ?? "";
} catch {}

export function readToken() {
  return token;
}

export function storeToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {}
}

/** Takes the token out of a link such as `/#token=…`; whether there was one. */
export function takeTokenFromAddress() {
  const match = /^#token=([^&]*)$/.exec(location.hash);
  if (!match) return false;
  try {
    storeToken(decodeURIComponent(match[1]));
  } catch {
    storeToken(match[1]);
  }
  // In place of the entry, so that neither the address bar nor the history keeps it.
  history.replaceState(null, "", "#/");
  return true;
}
