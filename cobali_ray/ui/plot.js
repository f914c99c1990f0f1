// uPlot inside a component: made once per theme, fed on every draw, as wide as its place.
import { html, useEffect, useLayoutEffect, useRef } from "./preact.js";
import { useStore } from "./store.js";
import { colour, theme } from "./theme.js";

/** Where the plot begins and ends within its place, in CSS pixels; lanes keep to the same. */
export const GUTTER = 64;
export const MARGIN = 26;

const FONT = "11px system-ui, sans-serif";

/** Bars, one per tick, side by side. */
export const bars = (name, label) => ({
  label,
  paths: uPlot.paths.bars({ size: [0.8, 60] }),
  fill: () => colour(name),
  stroke: () => colour(name),
  width: 0,
  points: { show: false },
});

/** A line of steps; `dash` for what is wished rather than done. */
export const steps = (name, label, dash = []) => ({
  label,
  paths: uPlot.paths.stepped({ align: 1 }),
  stroke: () => colour(name),
  width: 1.5,
  dash,
  points: { show: false },
});

function axes(unit, withX) {
  const shared = { stroke: () => colour("muted"), font: FONT, ticks: { show: false } };
  const grid = { stroke: () => colour("grid"), width: 1 };
  return [
    {
      ...shared,
      grid: { show: false },
      size: withX ? 22 : 4,
      gap: 4,
      space: 90,
      incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
      values: (_, ids) => ids.map((id) => (withX && id >= 0 ? `tick ${id.toLocaleString("en")}` : "")),
    },
    { ...shared, grid, size: GUTTER, gap: 6, space: 26, values: (_, values) => values.map(unit) },
  ];
}

/** Draw series over ticks `from .. to`. `unit` writes a y value with its unit, `most` chooses the y range. */
export function Plot({ series, data, from, to, unit, most, height, label, withX = true, onDraw = null }) {
  const place = useRef(null);
  const plot = useRef(null);
  const ask = useRef({});
  ask.current = { most, onDraw };
  const { version } = useStore(theme);
  useLayoutEffect(() => {
    const element = place.current;
    const made = new uPlot(
      {
        width: Math.max(element.clientWidth, 80),
        height,
        padding: [8, MARGIN, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { time: false, auto: false },
          y: { range: (_, __, max) => [0, ask.current.most(max ?? 0)] },
        },
        axes: axes(unit, withX),
        series: [{}, ...series],
        hooks: { drawAxes: [(u) => ask.current.onDraw?.(u)] },
      },
      data,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() =>
      made.setSize({ width: Math.max(element.clientWidth, 80), height }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [version, height, withX]);
  useEffect(() => {
    plot.current.batch(() => {
      plot.current.setData(data, false);
      plot.current.setScale("x", { min: from - 0.5, max: to + 0.5 });
    });
  });
  return html`<div class="plot" role="img" aria-label=${label} ref=${place}></div>`;
}

/** A plot with its title, legend and one line that says what one sees. */
export function Figure({ title, legend = [], note, children }) {
  return html`<figure class="figure">
    <div class="figure-head">
      <h2>${title}</h2>
      <ul class="legend">
        ${legend.map(([name, text]) => html`<li key=${name}><i class=${`swatch ${name}`}></i>${text}</li>`)}
      </ul>
    </div>
    ${children}
    <figcaption>${note}</figcaption>
  </figure>`;
}
