// Formats numbers, sizes and times. Sizes have the same format as on the command line.

const NO_BREAK = "\u00a0";
const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
// The Swedish locale formats times like ISO 8601.
const EXACT_TIME = new Intl.DateTimeFormat("sv", {
  dateStyle: "short",
  timeStyle: "medium",
});
const CLOCK_TIME = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });

/** All digits: `1,204,332`. */
export function formatCount(count) {
  return COUNT.format(count);
}

/** Three digits and a prefix: `1.2 M`. */
export function formatShort(count) {
  if (Math.abs(count) < 1000) return digits(count);
  return scale(count, 1000, ["k", "M", "G", "T", "P"]);
}

/** `1.2 k/s`. */
export function formatRate(count) {
  return `${formatShort(count)}/s`;
}

/** `17.2 MiB`. */
export function formatBytes(bytes) {
  if (Math.abs(bytes) < 1024) return `${Math.round(bytes)}${NO_BREAK}B`;
  return scale(bytes, 1024, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
}

export function formatByteRate(bytes) {
  return `${formatBytes(bytes)}/s`;
}

function scale(value, base, units) {
  let power = 0;
  let scaled = value / base;
  while (Math.abs(scaled) >= 999.5 && power < units.length - 1) {
    scaled /= base;
    power += 1;
  }
  return digits(scaled) + NO_BREAK + units[power];
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 1 ? 1 : 2);
}

/** The two largest units: `3 h 12 min`. */
export function formatDuration(millis) {
  const seconds = Math.floor(millis / 1000);
  if (millis < 1000) return join(Math.max(0, Math.round(millis)), "ms");
  if (seconds < 60) return join(seconds, "s");
  if (seconds < 3600) return join(Math.floor(seconds / 60), "min", seconds % 60, "s");
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return join(hours, "h", Math.floor(seconds / 60) % 60, "min");
  return join(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** Short durations: `240 ms`, `1.4 s`. */
export function formatElapsed(millis) {
  if (millis < 1000 || millis >= 60_000) return formatDuration(millis);
  return `${(millis / 1000).toFixed(1)}${NO_BREAK}s`;
}

function join(large, largeUnit, small = 0, smallUnit = "") {
  const first = `${large}${NO_BREAK}${largeUnit}`;
  return small ? `${first} ${small}${NO_BREAK}${smallUnit}` : first;
}

/** The largest unit: `12 s ago`. */
export function formatAgo(millis, now) {
  const seconds = Math.round((now - millis) / 1000);
  if (seconds < 1) return "now";
  if (seconds < 60) return `${seconds}${NO_BREAK}s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${NO_BREAK}min ago`;
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)}${NO_BREAK}h ago`;
  return `${Math.floor(seconds / 86_400)}${NO_BREAK}d ago`;
}

/** The time in the time zone of the browser: `2026-11-16 14:03:11`. */
export function formatTime(millis) {
  return EXACT_TIME.format(millis);
}

export function formatClock(millis) {
  return CLOCK_TIME.format(millis);
}

export function formatShare(part, whole) {
  if (!(whole > 0)) return "0%";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "<1%" : `${Math.round(share)}%`;
}

/** `1 stream`, `12 streams`. */
export function plural(count, word, words = `${word}s`) {
  return `${formatCount(count)} ${count === 1 ? word : words}`;
}
