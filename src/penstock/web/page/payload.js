// Shows payloads as text, JSON or hex. Payloads are untrusted: invisible and deceptive characters
// are replaced by visible characters.

const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
// Characters that are invisible or change the order of other characters.
const DECEPTIVE =
  /[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function decodeBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The text, or null if the bytes are not UTF-8. A cut payload may end within a character. */
export function asText(bytes, isCut) {
  for (let missing = 0; missing <= (isCut ? 3 : 0); missing += 1) {
    try {
      return makeVisible(DECODER.decode(bytes.subarray(0, bytes.length - missing)));
    } catch {}
  }
  return null;
}

/** Indented JSON, or null if the bytes are not JSON. */
export function asJson(bytes) {
  try {
    return makeVisible(indent(DECODER.decode(bytes)));
  } catch {
    return null;
  }
}

// Keeps numbers as they are: JSON.stringify would round long numbers.
function indent(text) {
  JSON.parse(text);
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, MAX_DEPTH))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  return tokens
    .map((token, index) => {
      if (token === "{" || token === "[") {
        depth += 1;
        return CLOSING.has(tokens[index + 1]) ? token : token + line();
      }
      if (CLOSING.has(token)) {
        depth -= 1;
        return OPENING.has(tokens[index - 1]) ? token : line() + token;
      }
      if (token === ",") return token + line();
      return token === ":" ? ": " : token;
    })
    .join("");
}

// Thousands of nested brackets must not become megabytes of spaces.
const MAX_DEPTH = 20;
const OPENING = new Set(["{", "["]);
const CLOSING = new Set(["}", "]"]);

/** Lines with position, bytes and ASCII characters. */
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

function makeVisible(text) {
  return text
    .replace(CONTROL, (character) =>
      String.fromCharCode(character === "\u007f" ? 0x2421 : 0x2400 + character.charCodeAt(0)),
    )
    .replace(
      DECEPTIVE,
      (character) => `<U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`,
    );
}
