// uPlot inside a component: made once per theme, fed on every draw, as wide as its place.
import { html, useLayoutEffect, useRef } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { colour, theme } from "../parts/theme.js";
import { marksOf } from "./axis.js";

/** Where the plot begins and ends within its place, in CSS pixels; lanes keep to the same. */
export const GUTTER = 64;
export const MARGIN = 26;

export const FONT = "11px Inter, system-ui, sans-serif";
const WIDE_MARK = 118; // CSS pixels of the axis per name on it

/** Bars as wide as what they stand for, and never narrower than a pixel. */
export const bars = (name) => ({
  paths: (u, i) => {
    const path = new Path2D();
    const bottom = u.valToPos(0, "y", true);
    const pixel = devicePixelRatio;
    eachColumn(u, i, (x0, x1, y) => {
      const gap = x1 - x0 > 12 * pixel ? 2 * pixel : x1 - x0 > 4 * pixel ? pixel : 0;
      path.rect(x0 + gap / 2, y, Math.max(x1 - x0 - gap, pixel), bottom - y);
    });
    return { fill: path, stroke: null };
  },
  fill: () => colour(name),
  width: 0,
  points: { show: false },
});

/** A line as long as each column; `dash` for a limit rather than a measurement. */
export const steps = (name, dash = []) => ({
  paths: (u, i) => {
    const path = new Path2D();
    let end = -Infinity;
    eachColumn(u, i, (x0, x1, y) => {
      if (x0 - end < 3 * devicePixelRatio) path.lineTo(x0, y);
      else path.moveTo(x0, y);
      path.lineTo(x1, y);
      end = x1;
    });
    return { stroke: path, fill: null };
  },
  stroke: () => colour(name),
  width: 1.5,
  dash,
  points: { show: false },
});

function eachColumn(u, i, draw) {
  u.columns.forEach(({ left, right }, n) => {
    const value = u.data[i][n];
    if (value !== null) draw(u.valToPos(left, "x", true), u.valToPos(right, "x", true), u.valToPos(value, "y", true));
  });
}

/** A scale from 0 on which every doubling is a step of like height. */
export const LOGARITHMIC = { distr: 100, fwd: (v) => Math.log2(1 + Math.max(v, 0)), inv: (v) => 2 ** v - 1 };

/**
 * Draw series over the columns of a window `{axis, lo, hi}`. `unit` writes a y value with its unit, `most` chooses
 * the y range, `scale` and `splits` another scale than the straight one.
 */
export function Plot({ series, columns, data, part, history, unit, most, height, label, ...options }) {
  const { withX = true, onDraw = null, scale = {}, splits = null } = options;
  const place = useRef(null);
  const plot = useRef(null);
  const ask = useRef({});
  ask.current = { most, onDraw, splits, unit };
  const { version } = useStore(theme);
  const { axis, lo, hi } = part;
  useLayoutEffect(() => {
    const element = place.current;
    const wide = () => Math.max(element.clientWidth, 80);
    const shared = { stroke: () => colour("muted"), font: FONT, ticks: { show: false } };
    const made = new uPlot(
      {
        width: wide(),
        height,
        padding: [8, MARGIN, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { time: false, auto: false },
          y: { range: (_, __, max) => [0, ask.current.most(max ?? 0)], ...scale },
        },
        axes: [
          {
            ...shared,
            grid: { show: false },
            size: withX ? 22 : 4,
            gap: 4,
            splits: (u) => u.marks.map(({ at }) => at),
            values: (u) => u.marks.map(({ text }) => (withX ? text : "")),
          },
          {
            ...shared,
            grid: { stroke: () => colour("grid"), width: 1 },
            size: GUTTER,
            gap: 6,
            space: 26,
            values: (_, values) => values.map((value) => ask.current.unit(value)),
            ...(splits && { splits: () => ask.current.splits(), filter: (_, all) => all }),
          },
        ],
        series: [{}, ...series],
        hooks: { drawAxes: [(u) => ask.current.onDraw?.(u)] },
      },
      null,
      element,
    );
    Object.assign(made, { columns: [], marks: [] });
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: wide(), height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [version, height, withX]);
  useLayoutEffect(() => {
    const made = plot.current; // in the frame in which the rest changes, or each change would cost two
    const most = Math.max(2, Math.floor((place.current.clientWidth - GUTTER - MARGIN) / WIDE_MARK));
    Object.assign(made, { columns, marks: marksOf(axis, lo, hi, most, history) });
    made.batch(() => {
      made.setData([columns.map(({ left }) => left), ...data], false);
      made.setScale("x", { min: lo, max: hi });
    });
  });
  return html`<div class="plot" role="img" aria-label=${label} ref=${place}></div>`;
}
