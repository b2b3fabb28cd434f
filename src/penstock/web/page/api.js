// The broker's API: JSON over fetch, with the token if there is one.

import { readToken } from "./token.js";

// A broker that hangs is as good as away.
const TIMEOUT_MILLIS = 5000;

/** No answer, or one that says that the broker cannot give any now. It is worth asking again. */
export class AwayError extends Error {
  /** `said` is what it answered, if it did. */
  constructor(said = "", options = {}) {
    super(said || "the broker does not answer", options);
    this.said = said;
  }
}

/** The broker wants a token (401), or another one (403). */
export class AccessError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** What the broker refused, in its own words. */
export class RefusedError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function get(path, parameters = {}, signal = undefined) {
  return request("GET", path, (response) => response.json(), parameters, signal);
}

export function post(path, parameters = {}) {
  return request("POST", path, (response) => response.json(), parameters);
}

export function getBytes(path) {
  return request("GET", path, (response) => response.blob());
}

/** A path of which each part may hold anything. */
export function pathOf(...parts) {
  return `/api/${parts.map(encodeURIComponent).join("/")}`;
}

async function request(method, path, read, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  const query = new URLSearchParams(given).toString();
  const token = readToken();
  const timeout = AbortSignal.timeout(TIMEOUT_MILLIS);
  try {
    const response = await fetch(query ? `${path}?${query}` : path, {
      method,
      cache: "no-store",
      credentials: "omit",
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    if (!response.ok) throw await failure(response);
    // An answer that breaks off in the middle is none.
    return await read(response);
  } catch (error) {
    if (signal?.aborted || OURS.some((kind) => error instanceof kind)) throw error;
    throw new AwayError("", { cause: error });
  }
}

const OURS = [AwayError, AccessError, RefusedError];

async function failure(response) {
  const answer = await response.json().catch(() => ({}));
  const message = answer.error ?? `The broker answered ${response.status}`;
  if (response.status === 401 || response.status === 403) {
    return new AccessError(message, response.status);
  }
  if (response.status >= 500) return new AwayError(message);
  return new RefusedError(message, response.status);
}
