// A payload in the ways one may want to see it. It may be anything, and made to deceive: all that
// has no look of its own is given one.

const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
// Characters that turn around, join or hide what stands beside them.
const DECEIVING =
  /[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function decodeBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The text, or null where the bytes are no UTF-8; a cut may have gone through a character. */
export function asText(bytes, isCut) {
  for (let short = 0; short <= (isCut ? 3 : 0); short += 1) {
    try {
      return visible(DECODER.decode(bytes.subarray(0, bytes.length - short)));
    } catch {}
  }
  return null;
}

/** JSON over several lines, or null where it is none. */
export function asJson(bytes) {
  try {
    return visible(indent(DECODER.decode(bytes)));
  } catch {
    return null;
  }
}

// Numbers stay as they were written: a JSON.parse would round what is longer than a double.
function indent(text) {
  JSON.parse(text);
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEEPEST))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  return tokens
    .map((token, place) => {
      if (token === "{" || token === "[") {
        depth += 1;
        return CLOSING.has(tokens[place + 1]) ? token : token + line();
      }
      if (CLOSING.has(token)) {
        depth -= 1;
        return OPENING.has(tokens[place - 1]) ? token : line() + token;
      }
      if (token === ",") return token + line();
      return token === ":" ? ": " : token;
    })
    .join("");
}

// Brackets alone, thousands of them, must not become megabytes of blanks.
const DEEPEST = 20;
const OPENING = new Set(["{", "["]);
const CLOSING = new Set(["}", "]"]);

/** Lines of place, bytes and what of them is ASCII. */
export function asHex(bytes, width) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += width) {
    const row = [...bytes.subarray(start, start + width)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = row
      .map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·"))
      .join("");
    lines.push(`${start.toString(16).padStart(4, "0")}  ${hex.padEnd(3 * width - 1)}  ${ascii}`);
  }
  return lines.join("\n");
}

function visible(text) {
  return text
    .replace(CONTROL, (character) =>
      String.fromCharCode(character === "\u007f" ? 0x2421 : 0x2400 + character.charCodeAt(0)),
    )
    .replace(
      DECEIVING,
      (character) => `<U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`,
    );
}
