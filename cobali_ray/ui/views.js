// The views that are fetched once somebody opens them.
import { script, style, withAll } from "./parts/lazy.js";

/** Plots of ticks: uPlot, and how they look. */
const plots = () => [
  script("ui/vendor/uplot-1.6.32.js"),
  style("ui/vendor/uplot-1.6.32.css"),
  style("ui/ticks/ticks.css"),
];

export const loadCompare = async () =>
  (
    await withAll(
      import("./compare/compare.js"),
      ...plots(),
      style("ui/answer/answer.css"),
      style("ui/compare/compare.css"),
    )
  ).CompareView;
export const loadTicks = async () =>
  (await withAll(import("./ticks/ticks.js"), ...plots())).Ticks;
