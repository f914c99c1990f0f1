// Live ticks in three plain sentences, for whoever sees them for the first time; kept away once they are read.
import { html } from "../parts/preact.js";
import { forGood, keep, kept, makeStore, useStore } from "../parts/store.js";

const NAME = "callouts-read";
const callouts = makeStore({ read: kept(forGood, NAME, false) });

function setRead(read) {
  callouts.set({ read });
  keep(forGood, NAME, read || null);
}

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
  if (useStore(callouts).read)
    return html`<p class="callouts-back"><button class="quiet small" onClick=${() => setRead(false)}>
      How to read this</button></p>`;
  return html`<section class="card callouts" aria-label="How to read this">
    <ol>${TEXTS.map(
      ([title, text], i) => html`<li key=${title}><span class="step" aria-hidden="true">${i + 1}</span>
        <p><b>${title}.</b> ${text}</p></li>`,
    )}</ol>
    <button onClick=${() => setRead(true)}>Got it</button>
  </section>`;
}
