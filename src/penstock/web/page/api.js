// Requests to the HTTP API of the broker, with the token if there is one.

import { readToken } from "./token.js";

const TIMEOUT_MILLIS = 5000;

/** The broker did not answer, or answered with a server error. A retry may succeed. */
export class UnavailableError extends Error {
  /** `reply` is the error message of the broker, if it answered. */
  constructor(reply = "", options = {}) {
    super(reply || "the broker does not answer", options);
    this.reply = reply;
  }
}

/** The request needs a token (401), or a token with more rights (403). */
export class AccessError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The broker rejected the request, with this message. */
export class RejectedError extends Error {
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

/** A path of the API. The parts may contain any characters. */
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
    if (!response.ok) throw await errorOf(response);
    // Reading may fail if the connection breaks within the response.
    return await read(response);
  } catch (error) {
    if (signal?.aborted || API_ERRORS.some((kind) => error instanceof kind)) throw error;
    throw new UnavailableError("", { cause: error });
  }
}

const API_ERRORS = [UnavailableError, AccessError, RejectedError];

async function errorOf(response) {
  const answer = await response.json().catch(() => ({}));
  const message = answer.error ?? `The broker answered with status ${response.status}`;
  if (response.status === 401 || response.status === 403) {
    return new AccessError(message, response.status);
  }
  if (response.status >= 500) return new UnavailableError(message);
  return new RejectedError(message, response.status);
}
