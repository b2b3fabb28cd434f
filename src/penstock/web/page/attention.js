// The problems in an overview that need attention, most severe first.

import { formatBytes, formatCount, formatDuration, formatShare, plural } from "./format.js";
import { streamLink } from "./router.js";

/** A list of `{ key, kind, subject, text, link }`. */
export function attention(overview) {
  const found = [
    ...diskProblems(overview),
    ...suspension(overview),
    ...overview.streams.flatMap(streamProblems),
    ...pipelineProblems(overview),
  ];
  return found.sort((one, other) => RANKS[one.kind] - RANKS[other.kind]);
}

const RANKS = { bad: 0, warn: 1 };

function* diskProblems({ store }) {
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
      text: `only ${share} of the disk is free`,
      link: null,
    };
  }
}

function* suspension({ exportsSuspended }) {
  if (exportsSuspended === "") return;
  const text = `suspended because their progress cannot be stored: ${exportsSuspended}`;
  yield { key: "suspended", kind: "bad", subject: "Exports", text, link: "#/pipeline" };
}

function streamProblems(stream) {
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
    found.push(about("full", "warn", `${share} full; when full, it rejects new messages`));
  }
  return found;
}

function failing(it) {
  const times = it.failures > 1 ? `failed ${formatCount(it.failures)} times` : "failed";
  const next = it.retryInMillis ? `, next retry in ${formatDuration(it.retryInMillis)}` : "";
  return `${it.identifier} ${times}${next}: ${it.errorMessage || "no reason given"}`;
}

function* pipelineProblems({ pipelines, streams }) {
  if (pipelines.some(({ isConnected }) => isConnected)) return;
  const waiting = streams.filter(({ exports }) => exports.some(({ isPaused }) => !isPaused)).length;
  if (waiting === 0) return;
  const text = `no pipeline is connected: exports of ${plural(waiting, "stream")} are waiting`;
  yield { key: "pipeline", kind: "warn", subject: "Pipeline", text, link: "#/pipeline" };
}
