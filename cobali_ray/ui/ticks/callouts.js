// Live ticks in three plain sentences, for whoever sees them for the first time; kept away once they are read.
import { html } from "../parts/preact.js";
import { keptStore, useStore } from "../parts/store.js";

const read = keptStore("callouts-read", false);

const TEXTS = [
  ["One bar, one round", "In each round of the engine, every running answer gets one more token, a piece of a word."],
  [
    "Blue is writing, orange is reading",
    "A long question is read in pieces beside the answers, so that none of them has to wait for it.",
  ],
  ["Click a bar", "The panel beside the bars explains what happened in that round, and how long it took."],
];

/** The three of them, and a button that puts them away; later, one that brings them back. */
export function Callouts() {
  if (useStore(read).value)
    return html`<p class="callouts-back"><button class="quiet small" onClick=${() => read.put(false)}>
      How to read this</button></p>`;
  return html`<section class="card callouts" aria-label="How to read this">
    <ol>${TEXTS.map(
      ([title, text], i) => html`<li key=${title}><span class="step" aria-hidden="true">${i + 1}</span>
        <p><b>${title}.</b> ${text}</p></li>`,
    )}</ol>
    <button onClick=${() => read.put(true)}>Got it</button>
  </section>`;
}
