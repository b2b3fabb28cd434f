// Creates and changes elements without parsing HTML: names, payloads and errors are untrusted, and
// are only shown as text.

/**
 * Creates an element. Functions in properties are listeners (`onclick`), `true` is an attribute
 * without a value, and `false`, null and undefined omit the attribute.
 */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Creates an SVG element. */
export function shape(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else setAttribute(node, name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// These functions write only changes: unchanged nodes cause no layout, and screen readers announce
// only new text.

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === false || value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

export function setHidden(node, isHidden) {
  if (node.hidden !== isHidden) node.hidden = isHidden;
}

/**
 * The children of a node, one per item. An item keeps its element while its key exists, so that
 * focus, selection and scroll positions are kept.
 */
export class KeyedList {
  #parts = new Map();

  /** `make(item)` returns `{ element, update(item) }`. */
  constructor(parent, keyOf, make) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.make = make;
  }

  update(items) {
    const parts = new Map();
    for (const item of items) {
      const key = this.keyOf(item);
      const part = this.#parts.get(key) ?? this.make(item);
      part.update?.(item);
      parts.set(key, part);
    }
    for (const [key, part] of this.#parts) if (!parts.has(key)) part.element.remove();
    this.#parts = parts;
    this.#place();
  }

  #place() {
    let next = this.parent.firstElementChild;
    for (const part of this.#parts.values()) {
      if (part.element === next) next = next.nextElementSibling;
      else this.parent.insertBefore(part.element, next);
    }
  }
}
