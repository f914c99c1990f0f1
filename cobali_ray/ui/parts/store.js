// A value that components can watch.
import { useEffect, useRef, useState } from "./preact.js";

/** Make a store. `set` merges a patch and notifies the watchers, at most once per frame. */
export function makeStore(value) {
  const watchers = new Set();
  let notified = true;
  const notify = () => {
    notified = true;
    for (const watcher of [...watchers]) watcher();
  };
  return {
    get: () => value,
    set(patch) {
      value = { ...value, ...patch };
      if (notified) {
        notified = false;
        soon(notify);
      }
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useStore(store) {
  const [, redraw] = useState(0);
  useEffect(() => {
    redraw((n) => n + 1); // what changed between drawing and watching
    return store.watch(() => redraw((n) => n + 1));
  }, [store]);
  return store.get();
}

/** Draw a component again so many milliseconds after each drawing; null: not by the clock. */
export function useRedraw(ms) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (ms === null) return undefined;
    const timer = setTimeout(() => redraw((n) => n + 1), ms);
    return () => clearTimeout(timer);
  });
}

/** Watch a store from a component that is costly to draw: changes are drawn so many milliseconds after the last. */
export function useStoreEvery(store, ms) {
  const [, redraw] = useState(0);
  const drawnMs = useRef(0);
  drawnMs.current = performance.now();
  useEffect(() => {
    let timer = null;
    const draw = () => {
      const restMs = drawnMs.current + ms - performance.now();
      timer = restMs > 0 ? setTimeout(draw, restMs) : null;
      if (timer === null) redraw((n) => n + 1);
    };
    const unwatch = store.watch(() => timer === null && draw());
    redraw((n) => n + 1);
    return () => {
      unwatch();
      clearTimeout(timer);
    };
  }, [store, ms]);
  return store.get();
}

/** Resolve to what is in a store, once that is as it should be. */
export function until(store, isSo) {
  return new Promise((resolve) => {
    const look = () => {
      if (!isSo(store.get())) return;
      unwatch();
      resolve(store.get());
    };
    const unwatch = store.watch(look);
    look();
  });
}

/** Call in the next frame; a hidden page has no frames, so there a timer does it. */
export function soon(call) {
  if (document.hidden) setTimeout(call, 100);
  else requestAnimationFrame(call);
}

/** Return what was kept under a name, or `otherwise`; storage may be forbidden. */
export function kept(storage, name, otherwise) {
  try {
    return JSON.parse(storage().getItem(`cobali.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep a value under a name, where that is allowed; null forgets it. */
export function keep(storage, name, value) {
  try {
    if (value === null) storage().removeItem(`cobali.${name}`);
    else storage().setItem(`cobali.${name}`, JSON.stringify(value));
  } catch {
    // Then it lives as long as the page.
  }
}

/** A store `{value}` of what this browser keeps under a name; `put` takes another value, and keeps it. */
export function keptStore(name, otherwise) {
  const read = () => ({ value: kept(forGood, name, otherwise) });
  const store = makeStore(read());
  const put = (value) => {
    store.set({ value });
    keep(forGood, name, value);
  };
  return { ...store, put, readAgain: () => store.set(read()) };
}

/**
 * Resolves to a name of this tab, which stays when the page is loaded again, and whether the tab is a copy: that has
 * all that the first kept for its session, and gets another name. Over plain http only loopback has locks to tell.
 */
export async function tabName(make) {
  const before = kept(forSession, "tab", null) ?? make();
  const isCopy = !(await isFree(before));
  const name = isCopy ? make() : before;
  if (isCopy) await isFree(name);
  keep(forSession, "tab", name);
  return { name, isCopy };
}

/** Whether no other tab has a name, which is this tab's from then on. */
const isFree = (name) =>
  new Promise((resolve) => {
    const take = (lock) => {
      resolve(lock !== null);
      return lock && new Promise(() => {}); // until the tab is closed
    };
    if (!navigator.locks) resolve(true);
    else navigator.locks.request(`cobali.tab.${name}`, { ifAvailable: true }, take).catch(() => resolve(true));
  });

export const forSession = () => sessionStorage;
export const forGood = () => localStorage;
