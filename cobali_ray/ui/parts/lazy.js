// What only some views need, fetched once somebody opens one of them.
import { BASE } from "./api.js";
import { html, useEffect, useState } from "./preact.js";

const fetched = new Map();

/** Add a classic script or a style sheet to the document, once; resolves when it is loaded. */
function add(tag, attributes) {
  const address = attributes.src ?? attributes.href;
  if (!fetched.has(address)) {
    const element = Object.assign(document.createElement(tag), attributes);
    const comes = new Promise((done, failed) => {
      element.onload = done;
      element.onerror = () => {
        fetched.delete(address);
        element.remove();
        failed(new Error(`${address} could not be loaded.`));
      };
    });
    fetched.set(address, comes);
    document.head.append(element);
  }
  return fetched.get(address);
}

export const script = (path) => add("script", { src: new URL(path, BASE).href });
export const style = (path) => add("link", { rel: "stylesheet", href: new URL(path, BASE).href });

/** Return a component in place of one that `load` fetches when it is first drawn. */
export function later(load) {
  let Made = null;
  return function Later(props) {
    const [failed, setFailed] = useState(false);
    const [, redraw] = useState(0);
    useEffect(() => {
      if (Made) return;
      load().then(
        (component) => {
          Made = component;
          redraw((n) => n + 1);
        },
        () => setFailed(true),
      );
    }, []);
    if (Made) return html`<${Made} ...${props} />`;
    return failed
      ? html`<div class="empty"><h2>This part could not be loaded</h2>
          <button onClick=${() => location.reload()}>Load the page again</button></div>`
      : null;
  };
}

/** Return a module once it and the styles and scripts that it needs are loaded. */
export const withAll = async (module, ...needed) => (await Promise.all([module, ...needed]))[0];
