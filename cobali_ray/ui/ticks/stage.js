// The plots of one window of ticks, one below the other, with one cursor over all of them.
import { feed } from "../feed/feed.js";
import { clockTime, duration } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { useStoreEvery } from "../parts/store.js";
import { tickAt } from "../plots/axis.js";
import { useWidth } from "../plots/canvas.js";
import { columnsOf, peaks } from "../plots/columns.js";
import { Figure } from "../plots/figure.js";
import { obey } from "../plots/keys.js";
import { laneHeight, Lanes } from "../plots/lanes.js";
import { GUTTER, MARGIN } from "../plots/plot.js";
import { KvUse, Queue, TickTime, Tokens } from "../plots/tickplots.js";
import { hold, isLive, look, pan, pick, showPart, shownOf, view, windowOf, zoom } from "../plots/window.js";

const DRAW_MS = 400; // drawing more often would take processor time from the model
const LANES = [
  ["decode-lane", "decode"],
  ["prefill", "prefill"],
  ["cached", "taken from the cache"],
  ["prefill-rest", "still to read"],
  ["waits", "waiting for its turn"],
];
const KEYS =
  "Arrow keys choose a tick, up and down a slot, Enter its request, plus and minus zoom, 0 shows all, Space pauses.";
const FAR = 6; // pixels from which on a press is a drag
const NEAR = 4; // pixels that a pointer may be beside a tick

export function Stage({ history }) {
  useStoreEvery(feed, DRAW_MS);
  const stage = useRef(null);
  const width = useWidth(stage);
  const state = view.get();
  const part = windowOf(history, state);
  const { axis, lo, hi, ticks } = part;
  const wide = Math.max(width - GUTTER - MARGIN, 1);
  const columns = columnsOf(ticks, axis, lo, hi, width ? wide : 1000);
  const shown = shownOf(history, state);
  const all = { history, ticks, part, columns };
  const drawn = peaks(columns, (tick) => tick.n_decode + tick.n_prefill);
  const [select, on] = useGestures(history, stage);
  return html`<div class="stage" ref=${stage} ...${on}>
    <${Cursor} history=${history} shown=${shown} part=${part} select=${select} />
    <${Tokens} ...${all} budget=${history.engine.token_budget} />
    <${Figure} title="Slots" legend=${LANES}
        note="One lane per slot with the request in it. A prompt fills its lane from below as it is read;
          it waits where a tick had no room for it. Click a lane to follow its request.">
      <${Lanes} history=${history} ticks=${drawn} part=${part} width=${width} selected=${state.request}
        lane=${state.lane} /><//>
    <${TickTime} ...${all} />
    <${Queue} ...${all} />
    <${KvUse} ...${all} />
  </div>`;
}

/** What pointers do: point, click, drag to pan, Shift-drag to select, wheel and pinch to zoom. */
function useGestures(history, stage) {
  const pointers = useRef(new Map());
  const drag = useRef(null);
  const [select, setSelect] = useState(null);
  /** The place of the axis under a pointer; beside the plots, their nearest end. */
  const placeOf = (clientX) => {
    const { lo, hi } = windowOf(history);
    const box = stage.current.getBoundingClientRect();
    const share = (clientX - box.left - GUTTER) / (box.width - GUTTER - MARGIN);
    return { at: lo + Math.max(0, Math.min(1, share)) * (hi - lo), inside: share >= 0 && share <= 1 };
  };
  const perPixel = () => {
    const { lo, hi } = windowOf(history);
    return (hi - lo) / (stage.current.clientWidth - GUTTER - MARGIN);
  };
  const idAt = (event) => {
    const { at, inside } = placeOf(event.clientX);
    return inside ? (tickAt(history, windowOf(history).axis, at, NEAR * perPixel())?.tick_id ?? null) : null;
  };
  useEffect(() => {
    const onWheel = (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      zoom(history, Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), placeOf(event.clientX).at);
    };
    const element = stage.current;
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [history]);
  const spread = () => {
    const [a, b] = [...pointers.current.values()];
    return { apart: Math.max(Math.abs(a - b), 20), middle: (a + b) / 2 };
  };
  const onDown = (event) => {
    if (event.button !== 0) return;
    pointers.current.set(event.pointerId, event.clientX);
    if (pointers.current.size === 2) drag.current = { kind: "pinch", ...spread(), moved: true };
    else if (event.shiftKey) drag.current = { kind: "select", x: event.clientX, from: placeOf(event.clientX).at };
    else drag.current = { kind: "pan", x: event.clientX, hi: windowOf(history).hi };
  };
  const onMove = (event) => {
    const { current } = drag;
    if (pointers.current.has(event.pointerId)) pointers.current.set(event.pointerId, event.clientX);
    if (!current) {
      if (event.pointerType !== "mouse") return;
      hold(history, true);
      look(idAt(event));
    } else if (current.kind === "pinch") {
      if (pointers.current.size < 2) return;
      const { apart, middle } = spread();
      zoom(history, current.apart / apart, placeOf(middle).at);
      current.apart = apart;
    } else {
      current.moved ||= Math.abs(event.clientX - current.x) > FAR;
      if (!current.moved) return;
      if (current.kind === "pan") pan(history, current.hi - (event.clientX - current.x) * perPixel());
      else setSelect([current.from, placeOf(event.clientX).at].sort((a, b) => a - b));
    }
  };
  const finish = (event) => {
    const { current } = drag;
    pointers.current.delete(event.pointerId);
    if (!pointers.current.size) drag.current = null;
    setSelect(null);
    return current;
  };
  const onUp = (event) => {
    const current = finish(event);
    if (!current) return;
    if (current.kind === "select" && current.moved) {
      const [lo, hi] = [current.from, placeOf(event.clientX).at].sort((a, b) => a - b);
      showPart(history, lo, hi);
    }
    const id = idAt(event);
    if (current.moved || id === null) return;
    const lanes = event.target.closest?.(".lanes");
    const top = lanes?.getBoundingClientRect().top;
    pick(history, id, lanes ? Math.floor((event.clientY - top) / laneHeight(history.engine.n_slots)) : null);
  };
  const onLeave = (event) => {
    finish(event);
    hold(history, false);
    look(null);
  };
  const on = { onPointerDown: onDown, onPointerMove: onMove, onPointerUp: onUp };
  return [select, { ...on, onPointerLeave: onLeave, onPointerCancel: onLeave }];
}

/** The chosen tick: a line over all plots, and a slider for keys and screen readers; what Shift-drag selects. */
function Cursor({ history, shown, part, select }) {
  const { axis, lo, hi } = part;
  const share = (at) => Math.max(0, Math.min(1, (at - lo) / (hi - lo)));
  const left = (at) => `calc(${GUTTER}px + (100% - ${GUTTER + MARGIN}px) * ${share(at)})`;
  const middle = shown ? (axis.leftOf(shown) + axis.rightOf(shown)) / 2 : null;
  const { pinned, hovered } = view.get();
  const marked = shown && middle >= lo && middle <= hi && (pinned !== null || hovered !== null);
  const text = shown
    ? `Tick ${shown.tick_id}, ${clockTime(history.unix(shown.started_s))}: ${shown.n_decode} decode and ` +
      `${shown.n_prefill} prefill tokens in ${duration(shown.total_s)}`
    : "No tick";
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || !obey(history, event.key, event.shiftKey)) return;
    event.preventDefault();
  };
  return html`<div class="cursor" role="slider" tabindex="0" aria-label="Tick" aria-valuemin=${history.firstId}
      aria-valuemax=${Math.max(history.lastId, 0)} aria-valuenow=${shown?.tick_id ?? 0} aria-valuetext=${text}
      aria-description=${KEYS}
      onKeyDown=${onKey}>
    ${marked && html`<div class=${`cursor-line ${isLive() ? "" : "pinned"}`} style=${{ left: left(middle) }}></div>`}
    ${
      select &&
      html`<div class="selected" style=${{ left: left(select[0]), right: `calc(100% - ${left(select[1])})` }}></div>`
    }
  </div>`;
}
