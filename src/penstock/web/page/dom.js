// Elements, made and changed without a line of HTML: what a broker tells (names, payloads, errors
// of strangers) becomes text and nothing else.

/**
 * An element. Properties that are functions are listeners (`onclick`), `true` is an attribute
 * without a value, and `false`, null and undefined leave one out.
 */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for the inside of an SVG picture. */
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

// Each of these looks before it writes: a page that changes nothing lays nothing out again, and a
// screen reader is told only what is new.

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
 * Children of a node, one for each item. An item keeps its element for as long as its key is there,
 * so that focus, selection and scroll positions stay where they are.
 */
export class KeyedList {
  #parts = new Map();

  /** `make(item)` gives `{ element, update(item) }`. */
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
