// The numbers of all sides beside each other, with the better one marked.
import { html } from "../parts/preact.js";
import { LEAD, MEASURES, bestOf, numbersOf, formatted, wordOf } from "./measures.js";

/** A row per measure, a column per side; `sides` are `{name, answer, request}`, and have ended. */
export function NumbersTable({ sides }) {
  const all = sides.map(({ answer, request }) => numbersOf(answer, request));
  const partly = sides.filter((_, i) => all[i].from !== "server").map(({ name }) => name);
  return html`<section class="card measures" aria-label="Numbers">
    <div class="scroller" tabindex="0" role="region" aria-label="Table of numbers">
      <table class=${`table ${sides.length === 2 ? "two" : ""}`}>
        <thead><tr><th scope="col"><span class="hidden">Measure</span></th>
          ${sides.map(({ name }) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${MEASURES.map(
          (measure) => html`<${Row} key=${measure.name} measure=${measure}
            values=${all.map(({ numbers }) => numbers[measure.name] ?? null)} />`,
        )}</tbody>
      </table>
    </div>
    <p class="hint">Measured by the server. All sides ran at the same time; each is faster when it runs alone.
      A number is marked where it leads by ${Math.round(LEAD * 100)} % or more.
      ${
        partly.length > 0 &&
        html` Did not end by itself: ${partly.join(", ")}. Those numbers are from the engine's ticks.`
      }</p>
  </section>`;
}

function Row({ measure, values }) {
  const best = bestOf(measure, values);
  return html`<tr><th scope="row" title=${measure.hint}>${measure.label}</th>
    ${values.map(
      (value, i) => html`<td key=${i}>${formatted(measure, value)}
        ${i === best && html`${" "}<span class="badge good">${wordOf(values.length)}</span>`}</td>`,
    )}</tr>`;
}
