// A plot with its texts: title, legend, and an explanation, which folds.
import { html } from "../parts/preact.js";
import { keptStore, useStore } from "../parts/store.js";

const captions = keptStore("captions", true);

/** Show or hide what explains the plots, from now on. */
export function FoldCaptions() {
  const { value: open } = useStore(captions);
  return html`<button class="quiet" aria-pressed=${String(open)} onClick=${() => captions.put(!open)}
    title="What each plot shows">Explain</button>`;
}

/** `aside` is a fact about what is drawn and stays; `note` explains and folds. */
export function Figure({ title, legend = [], aside = "", note, children }) {
  const { value: open } = useStore(captions);
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
