// A table that updates in place: rows keep their elements, cells write only changes, headers sort.
// On a narrow screen rows are cards, and a list of columns sorts them.

import { element, KeyedList, setAttribute, setHidden, setText } from "./dom.js";

/**
 * `columns` are `{ id, label, cell(row) }`. `cell` is called once per row and returns
 * `{ element, update(row, now) }`. A column with `order(row)` is sortable, in descending order
 * first if `descends`. Columns with `isNumber` are aligned as numbers.
 */
export class LiveTable {
  #body = element("tbody", { role: "rowgroup" });
  #headers = new Map();
  #select;
  #list;
  #empty = element("p", { class: "empty", hidden: true });
  #rows = [];
  #now = 0;
  #order = [];

  constructor({ label, columns, keyOf, sortedBy = null, className = "", rowState = () => null }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.sorting = sortedBy && { id: sortedBy, descends: this.#column(sortedBy).descends ?? false };
    this.#list = new KeyedList(this.#body, keyOf, (row) => this.#row(row, rowState));
    const head = element(
      "tr",
      { role: "row" },
      columns.map((column) => this.#header(column)),
    );
    this.#select = this.#sortList();
    this.element = element(
      "div",
      { class: "table-frame" },
      sortedBy ? element("label", { class: "sort-list" }, "Sort by ", this.#select) : null,
      element(
        "table",
        { class: `live ${className}`, role: "table", "aria-label": label },
        element("thead", { role: "rowgroup" }, head),
        this.#body,
      ),
      this.#empty,
    );
    this.#showSorting();
  }

  /** `whenEmpty` is shown if there are no rows. */
  update(rows, now, whenEmpty = "") {
    this.#rows = rows;
    this.#now = now;
    setText(this.#empty, whenEmpty);
    setHidden(this.#empty, rows.length > 0 || !whenEmpty);
    this.#show();
  }

  #show(isRequested = false) {
    this.#list.update(this.sorting ? this.#sorted(isRequested) : this.#rows);
  }

  #sorted(isRequested) {
    // Rows must not move under the pointer or the focus. While the pointer or the focus is in the
    // table, rows keep their order, and new rows are appended.
    if (!isRequested && this.#body.matches(":hover, :focus-within")) return this.#inPreviousOrder();
    const { id, descends } = this.sorting;
    const { order } = this.#column(id);
    const sorted = this.#rows
      .map((row) => ({ row, by: order(row) }))
      .sort(
        (one, other) =>
          (descends ? -1 : 1) * compare(one.by, other.by) ||
          compare(this.keyOf(one.row), this.keyOf(other.row)),
      )
      .map(({ row }) => row);
    this.#order = sorted.map(this.keyOf);
    return sorted;
  }

  #inPreviousOrder() {
    const positions = new Map(this.#order.map((key, index) => [key, index]));
    const position = (row) => positions.get(this.keyOf(row)) ?? Infinity;
    return [...this.#rows].sort((one, other) => compare(position(one), position(other)));
  }

  #column(id) {
    return this.columns.find((column) => column.id === id);
  }

  #row(row, rowState) {
    const parts = this.columns.map((column) => ({ column, part: column.cell(row) }));
    const cells = parts.map(({ column, part }) =>
      element(
        "td",
        {
          role: "cell",
          class: `cell-${column.id}${column.isNumber ? " number" : ""}`,
          "data-label": column.label,
        },
        part.element,
      ),
    );
    const node = element("tr", { role: "row", "data-key": this.keyOf(row) }, cells);
    return {
      element: node,
      update: (changed) => {
        setAttribute(node, "data-state", rowState(changed));
        for (const { part } of parts) part.update?.(changed, this.#now);
      },
    };
  }

  #header(column) {
    const inside = column.order
      ? element(
          "button",
          { type: "button", class: "sorter", onclick: () => this.#sortBy(column) },
          column.label,
        )
      : column.label;
    const node = element(
      "th",
      {
        role: "columnheader",
        scope: "col",
        class: `cell-${column.id}${column.isNumber ? " number" : ""}`,
      },
      inside,
    );
    this.#headers.set(column.id, node);
    return node;
  }

  #sortList() {
    const list = element("select", {
      onchange: () => {
        const [id, direction] = list.value.split(" ");
        this.sorting = { id, descends: direction === "down" };
        this.#showSorting();
        this.#show(true);
      },
    });
    for (const { id, label, order } of this.columns) {
      if (!order) continue;
      list.append(
        element("option", { value: `${id} up` }, `${label} ↑`),
        element("option", { value: `${id} down` }, `${label} ↓`),
      );
    }
    return list;
  }

  #sortBy(column) {
    const isSame = this.sorting.id === column.id;
    this.sorting = {
      id: column.id,
      descends: isSame ? !this.sorting.descends : (column.descends ?? false),
    };
    this.#showSorting();
    this.#show(true);
  }

  #showSorting() {
    if (!this.sorting) return;
    const { id, descends } = this.sorting;
    for (const [column, node] of this.#headers) {
      setAttribute(
        node,
        "aria-sort",
        column === id ? (descends ? "descending" : "ascending") : null,
      );
    }
    this.#select.value = `${id} ${descends ? "down" : "up"}`;
  }
}

/** A cell with text. */
export function textCell(textOf, titleOf = () => null) {
  const node = element("span", {});
  return {
    element: node,
    update(row, now) {
      setText(node, textOf(row, now));
      setAttribute(node, "title", titleOf(row));
    },
  };
}

function compare(one, other) {
  if (typeof one === "string" && typeof other === "string") return COLLATOR.compare(one, other);
  return one < other ? -1 : one > other ? 1 : 0;
}

// turbine-2 comes before turbine-10.
const COLLATOR = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
