// Where the focus goes when what has it goes away.

/** Focus what `find` returns, once it is drawn. */
export const focusLater = (find) =>
  requestAnimationFrame(() => requestAnimationFrame(() => find()?.focus({ preventScroll: true })));

/** After a button that goes away was pressed by a key, go on in the message; a finger would call up a keyboard. */
export function toMessage({ detail: clicks }) {
  if (!clicks) document.getElementById("prompt").focus({ preventScroll: true });
}
