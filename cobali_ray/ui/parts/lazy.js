// What only some views need, fetched once somebody opens one of them.
import { BASE } from "./api.js";
import { html, useEffect } from "./preact.js";
import { makeStore, useStore } from "./store.js";

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

/**
 * What `load` fetches once somebody needs it: `need` resolves when it is there or has failed, `use` gives it to a
 * component as `{loaded, failed}`. After a failure, the next who needs it tries again.
 */
export function onDemand(load) {
  const state = makeStore({ loaded: null, failed: false });
  let coming = null;
  const fail = () => {
    coming = null;
    state.set({ failed: true });
  };
  const begin = () => {
    state.set({ failed: false });
    return load().then((loaded) => state.set({ loaded }), fail);
  };
  const need = () => (coming ??= begin());
  const use = (isNeeded = true) => {
    useEffect(() => void (isNeeded && need()), [isNeeded]);
    return useStore(state);
  };
  return { need, use };
}

/** Return a component in place of one that `load` fetches when it is first drawn. */
export function later(load) {
  const part = onDemand(load);
  return function Later(props) {
    const { loaded: Part, failed } = part.use();
    if (Part) return html`<${Part} ...${props} />`;
    return failed
      ? html`<div class="empty"><h2>This part could not be loaded</h2>
          <button onClick=${() => location.reload()}>Load the page again</button></div>`
      : null;
  };
}

/** Return a module once it and the styles and scripts that it needs are loaded. */
export const withAll = async (module, ...needed) => (await Promise.all([module, ...needed]))[0];
