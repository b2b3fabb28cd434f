// Plots over time with uPlot, in the colors of the theme. The legend shows the values at the
// pointer, or the newest values.

import { element, setText } from "./dom.js";
import { formatClock } from "./format.js";

const { uPlot } = globalThis;

// The broker has a history of five minutes.
const SPAN_SECONDS = 300;

/** Steps of an axis of bytes: powers of two. */
export const BYTE_INCREMENTS = Array.from({ length: 50 }, (_, power) => 2 ** power);

/**
 * A figure with `series` of `{ label, color }`. Colors are names of custom properties. Plots with
 * the same `group` share their pointer.
 */
export class TimePlot {
  #plot = null;
  #columns = [[]];
  #values;
  #when = element("span", { class: "legend-when" });
  #stage = element("div", { class: "plot-stage", "aria-hidden": "true" });
  #observer;
  #redraw = () => this.#plot?.redraw();

  constructor({ title, series, format, id, group = "", height = 200, increments = null }) {
    this.options = { series, format, group, height, increments };
    this.#values = series.map(() => element("span", { class: "legend-value" }, "–"));
    const legend = series.map(({ label, color }, index) =>
      element(
        "span",
        { class: "legend-entry" },
        swatch(color),
        element("span", { class: "legend-label" }, label),
        this.#values[index],
      ),
    );
    this.element = element(
      "figure",
      { class: "panel plot", "data-testid": id },
      element(
        "figcaption",
        {},
        element("span", { class: "plot-title" }, title),
        element("span", { class: "legend" }, this.#when, legend),
      ),
      this.#stage,
    );
    this.#stage.style.height = `${height}px`;
    // The size is known only after the figure was inserted into the page.
    this.#observer = new ResizeObserver(() => this.#fit());
    this.#observer.observe(this.#stage);
    addEventListener("themechange", this.#redraw);
  }

  update(columns) {
    this.#columns = columns;
    this.element.dataset.newest = String(columns[0].at(-1) ?? "");
    if (this.#plot) this.#plot.setData(columns);
    this.#showValues(this.#plot?.cursor.idx ?? null);
  }

  close() {
    this.#observer.disconnect();
    removeEventListener("themechange", this.#redraw);
    this.#plot?.destroy();
  }

  #fit() {
    const width = this.#stage.clientWidth;
    if (width === 0) return;
    const size = { width, height: this.options.height };
    if (this.#plot) this.#plot.setSize(size);
    else this.#plot = new uPlot(this.#settings(size), this.#columns, this.#stage);
  }

  #showValues(index) {
    const isPointed = index !== null && index < this.#columns[0].length;
    const at = isPointed ? index : this.#columns[0].length - 1;
    this.#values.forEach((node, number) => {
      const value = this.#columns[number + 1]?.[at];
      setText(node, value === null || value === undefined ? "–" : this.options.format(value));
    });
    setText(this.#when, isPointed ? formatClock(this.#columns[0][at] * 1000) : "");
  }

  #settings(size) {
    const { series, format, group, increments } = this.options;
    const axis = {
      stroke: () => colorOf("--muted"),
      grid: { stroke: () => colorOf("--grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    return {
      ...size,
      padding: [10, 4, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { setScale: false, x: false, y: false },
        points: { size: 7, width: 1.5 },
        sync: group ? { key: group } : undefined,
      },
      scales: {
        x: { range: (_, __, newest) => [newest - SPAN_SECONDS, newest] },
        y: { range: (_, __, largest) => [0, Math.max(1, largest ?? 1) * 1.12] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 26,
          gap: 4,
          space: 70,
          values: (_, seconds) => seconds.map((second) => formatClock(second * 1000).slice(0, 5)),
          incrs: [60, 120, 300],
        },
        {
          ...axis,
          size: (_, values) => 12 + 6.4 * Math.max(4, ...(values ?? []).map((text) => text.length)),
          space: 38,
          ...(increments && { incrs: increments }),
          values: (_, values) => values.map((value) => (value === 0 ? "0" : format(value))),
        },
      ],
      series: [{}, ...series.map((line, index) => seriesOptions(line, index === 0))],
      hooks: { setCursor: [(plot) => this.#showValues(plot.cursor.idx)] },
    };
  }
}

function seriesOptions({ label, color: name }, isFilled) {
  return {
    label,
    stroke: () => colorOf(name),
    fill: isFilled ? () => colorOf(`${name}-fill`) : undefined,
    width: 1.75,
    points: { show: false },
    spanGaps: false,
  };
}

function swatch(name) {
  const node = element("span", { class: "swatch", "aria-hidden": "true" });
  node.style.background = `var(${name})`;
  return node;
}

// A custom property has the unresolved value `light-dark(…)`; the color of an element is resolved.
function colorOf(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const probe = element("span", { hidden: true });
document.body.append(probe);
