// The routes of the dashboard. They are in the hash of the URL, which is not sent to the broker.

const PAGES = new Set(["streams", "tasks", "pipeline", "events"]);

/** Returns `{ page, name?, query }`; the page is `missing` for an unknown route. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  const parameters = new URLSearchParams(query);
  if (parts.length === 0) return { page: "overview", query: parameters };
  if (parts.length === 1 && PAGES.has(parts[0])) return { page: parts[0], query: parameters };
  if (parts.length === 2 && parts[0] === "streams") {
    return { page: "stream", name: decode(parts[1]), query: parameters };
  }
  return { page: "missing", query: parameters };
}

export function streamLink(name) {
  return `#/streams/${encodeURIComponent(name)}`;
}

export function messageLink(name, sequenceNumber) {
  return `${streamLink(name)}?${new URLSearchParams({ from: sequenceNumber })}`;
}

export function tasksLink(name) {
  return `#/tasks?${new URLSearchParams({ stream: name })}`;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
