// Two answers as one text, with what only one of them says.
import { some } from "../parts/format.js";
import { html, useMemo, useState } from "../parts/preact.js";
import { differenceOf } from "./diff.js";
import { answerText } from "./measures.js";

/** The difference between two of the sides, which have ended. */
export function Difference({ sides }) {
  const [pair, setPair] = useState([0, 1]);
  const [left, right] = pair.map((i) => sides[i]);
  return html`<section class="card difference" aria-label="Difference">
    <header><h2>Difference</h2>
      ${sides.length > 2 && html`<${Pair} sides=${sides} pair=${pair} choose=${setPair} />`}</header>
    <${Text} left=${left} right=${right} />
  </section>`;
}

function Pair({ sides, pair, choose }) {
  return html`<span class="pair">${["between", "and"].map(
    (word, k) => html`<label key=${word}><span>${word}</span>
      <select value=${pair[k]} onChange=${(event) => choose(pair.with(k, Number(event.target.value)))}>
        ${sides.map(({ name }, i) => html`<option key=${i} value=${i}>${name}</option>`)}
      </select></label>`,
  )}</span>`;
}

function Text({ left, right }) {
  const [a, b] = [answerText(left.answer), answerText(right.answer)];
  const difference = useMemo(() => differenceOf(a, b), [a, b]);
  if (!difference) return html`<p class="muted">These answers are too long to be compared.</p>`;
  const { by, parts } = difference;
  const sum = (name) => parts.reduce((total, part) => total + (part[name] ?? 0), 0);
  if (!sum("nRemoved") && !sum("nAdded")) return html`<p class="muted">Both answers say the same.</p>`;
  return html`<p class="muted tally">${some(sum("n"), by)} in both,
      ${" "}<del>${some(sum("nRemoved"), by)} only in ${left.name}</del>,
      ${" "}<ins>${some(sum("nAdded"), by)} only in ${right.name}</ins></p>
    <p class="words" tabindex="0" role="region" aria-label="Text with differences">${parts.map((part, i) =>
      part.same === undefined
        ? html`<${Changed} key=${i} removed=${part.removed} added=${part.added} />`
        : html`<span key=${i}>${part.same}</span>`,
    )}</p>`;
}

/** What is struck out and what takes its place; the space behind them is not marked. */
function Changed({ removed, added }) {
  const [left, right] = [removed.trimEnd(), added.trimEnd()];
  const [behind] = [removed.slice(left.length), added.slice(right.length)].sort((a, b) => b.length - a.length);
  return html`<span>${left && html`<del>${left}</del>`}${left && right && " "}${
    right && html`<ins>${right}</ins>`
  }${behind}</span>`;
}
