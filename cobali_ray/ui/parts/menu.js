// A menu that a click opens.
import { html, useRef } from "./preact.js";

/** `summary` opens it. It closes once something in it is chosen, by Escape, and when the focus leaves it. */
export function Menu({ kind, summary, label = null, children }) {
  const menu = useRef(null);
  const close = () => {
    menu.current.open = false;
  };
  const onFocusOut = ({ relatedTarget }) => menu.current.contains(relatedTarget) || close();
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || !menu.current.open) return;
    event.preventDefault();
    close();
    menu.current.querySelector("summary").focus();
  };
  return html`<details class=${kind} ref=${menu} onKeyDown=${onKeyDown} onFocusOut=${onFocusOut}>
    <summary aria-label=${label}>${summary}</summary>
    <div class="menu" onClickCapture=${close}>${children}</div>
  </details>`;
}
