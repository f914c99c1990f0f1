// Where the focus goes when the element that has it is removed.

/** Do something once what changed is drawn. */
export const whenDrawn = (work) => requestAnimationFrame(() => requestAnimationFrame(work));

/** Focus what `find` returns, once it is drawn. */
export const focusLater = (find) => whenDrawn(() => find()?.focus({ preventScroll: true }));

/** Focus the message after a button that goes away was pressed by a key; after a tap it would open a keyboard. */
export function toMessage({ detail: clicks }) {
  if (!clicks) document.getElementById("prompt").focus({ preventScroll: true });
}
