// The token of this tab. It is removed when the tab is closed.

const KEY = "penstock.token";

// If storage is disabled, the token lasts until the page is closed.
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

/** Moves the token out of a link such as `/#token=…`. Returns whether there was one. */
export function takeTokenFromAddress() {
  const match = /^#token=([^&]*)$/.exec(location.hash);
  if (!match) return false;
  try {
    storeToken(decodeURIComponent(match[1]));
  } catch {
    storeToken(match[1]);
  }
  // Replaces the entry, so that the token stays neither in the address bar nor in the history.
  history.replaceState(null, "", "#/");
  return true;
}
