// What an operator should look at, of all that an overview tells; the worst first.

import { formatBytes, formatCount, formatDuration, formatShare, plural } from "./format.js";
import { streamLink } from "./router.js";

/** A list of `{ key, kind, subject, text, link }`. */
export function attention(overview) {
  const found = [...disk(overview), ...suspended(overview), ...overview.streams.flatMap(ofStream), ...pipeline(overview)];
  return found.sort((one, other) => RANKS[one.kind] - RANKS[other.kind]);
}

const RANKS = { bad: 0, warn: 1 };

function* disk({ store }) {
  if (store.refusesAppends) {
    const refused = plural(store.refusedMessages, "message");
    yield {
      key: "disk",
      kind: "bad",
      subject: "Disk",
      text: `${formatBytes(store.diskFreeBytes)} free: appends are refused, ${refused} so far`,
      link: null,
    };
  } else if (store.diskTotalBytes > 0 && store.diskFreeBytes < 0.05 * store.diskTotalBytes) {
    const share = formatShare(store.diskFreeBytes, store.diskTotalBytes);
    yield {
      key: "disk",
      kind: "bad",
      subject: "Disk",
      text: `${share} of the disk is free`,
      link: null,
    };
  }
}

function* suspended({ exportsSuspended }) {
  if (exportsSuspended === "") return;
  const text = `suspended, because their progress cannot be stored: ${exportsSuspended}`;
  yield { key: "suspended", kind: "bad", subject: "Exports", text, link: "#/pipeline" };
}

function ofStream(stream) {
  const link = streamLink(stream.name);
  const about = (key, kind, text) => ({
    key: `${stream.name}/${key}`,
    kind,
    subject: stream.name,
    text,
    link,
  });
  if (stream.problem !== null) return [about("", "bad", stream.problem)];
  const found = stream.exports
    .filter(({ state }) => state === "failing")
    .map((it) => about(it.identifier, "bad", failing(it)));
  if (stream.damagedMessages > 0) {
    const count = plural(stream.damagedMessages, "damaged message");
    found.push(about("damaged", "bad", `${count}; ${stream.damage}`));
  }
  if (stream.strategyOnFull === "RejectNewData" && stream.totalBytes >= 0.9 * stream.maxSize) {
    const share = formatShare(stream.totalBytes, stream.maxSize);
    found.push(about("full", "warn", `${share} full; it will reject new messages`));
  }
  return found;
}

function failing(it) {
  const times = it.failures > 1 ? `failed ${formatCount(it.failures)} times` : "failed";
  const next = it.retryInMillis ? `, next try in ${formatDuration(it.retryInMillis)}` : "";
  return `${it.identifier} ${times}${next}: ${it.errorMessage || "no reason was given"}`;
}

function* pipeline({ pipelines, streams }) {
  if (pipelines.some(({ isConnected }) => isConnected)) return;
  const waiting = streams.filter(({ exports }) => exports.some(({ isPaused }) => !isPaused)).length;
  if (waiting === 0) return;
  const text = `none is connected, so ${plural(waiting, "stream")} with exports ${waiting === 1 ? "waits" : "wait"}`;
  yield { key: "pipeline", kind: "warn", subject: "Pipeline", text, link: "#/pipeline" };
}
