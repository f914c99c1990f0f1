// A plot with its texts: title, legend, and an explanation, which folds.
import { html } from "../parts/preact.js";
import { forGood, keep, kept, makeStore, useStore } from "../parts/store.js";

const captions = makeStore({ open: kept(forGood, "captions", true) });

/** Show or hide what explains the plots, from now on. */
export function FoldCaptions() {
  const { open } = useStore(captions);
  const fold = () => {
    keep(forGood, "captions", !open);
    captions.set({ open: !open });
  };
  return html`<button class="quiet" aria-pressed=${String(open)} onClick=${fold}
    title="What each plot shows">Explain</button>`;
}

/** `aside` is a fact about what is drawn and stays; `note` explains and folds. */
export function Figure({ title, legend = [], aside = "", note, children }) {
  const { open } = useStore(captions);
  return html`<figure class="figure">
    <div class="figure-head">
      <h2>${title}</h2>
      <ul class="legend">
        ${legend.map(([name, text]) => html`<li key=${name}><i class=${`swatch ${name}`}></i>${text}</li>`)}
      </ul>
    </div>
    ${children}
    ${(open || aside) && html`<figcaption>${aside && html`<span>${aside}${" "}</span>`}${open && note}</figcaption>`}
  </figure>`;
}
