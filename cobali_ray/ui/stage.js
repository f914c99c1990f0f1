// The plots of one window of ticks, one below the other, with one cursor over all of them.
import { clockTime, duration } from "./format.js";
import { laneHeight, Lanes } from "./lanes.js";
import { Figure, GUTTER, MARGIN } from "./plot.js";
import { html, useRef } from "./preact.js";
import { KvUse, Queue, TickTime, Tokens } from "./tickplots.js";
import { hold, isLive, look, move, pan, pick, shownOf, view, windowOf } from "./window.js";

const LANES = [
  ["decode-lane", "decode"],
  ["prefill", "prefill"],
  ["cached", "taken from the cache"],
  ["prefill-rest", "still to read"],
  ["waits", "waits for its turn"],
];

/** Everything that shares the axis of ticks. */
export function Stage({ history }) {
  const stage = useRef(null);
  const drag = useRef(null);
  const state = view.get();
  const { from, to } = windowOf(history, state);
  const ticks = history.between(from, to);
  const shown = shownOf(history, state);
  const all = { ticks, from, to };
  const idAt = (event) => {
    const box = stage.current.getBoundingClientRect();
    const share = (event.clientX - box.left - GUTTER) / (box.width - GUTTER - MARGIN);
    return share < 0 || share > 1 ? null : Math.floor(from + share * (to - from + 1));
  };
  const onMove = (event) => {
    const id = idAt(event);
    const { current } = drag;
    if (current) {
      const perTick = (stage.current.clientWidth - GUTTER - MARGIN) / (to - from + 1);
      const far = Math.abs(event.clientX - current.x) > 6;
      current.moved ||= far;
      if (current.moved) pan(history, current.to - Math.round((event.clientX - current.x) / perTick));
      return;
    }
    if (event.pointerType === "mouse") {
      hold(history, true);
      look(id);
    }
  };
  const onUp = (event) => {
    const moved = drag.current?.moved;
    drag.current = null;
    const id = idAt(event);
    if (moved || id === null || !history.tick(id)) return;
    const lanes = event.target.closest?.(".lanes");
    const slot =
      lanes &&
      Math.floor((event.clientY - lanes.getBoundingClientRect().top) / laneHeight(history.engine.n_slots));
    pick(history, id, slot);
  };
  const onLeave = () => {
    drag.current = null;
    hold(history, false);
    look(null);
  };
  return html`<div class="stage" ref=${stage}
      onPointerDown=${(event) => event.button === 0 && (drag.current = { x: event.clientX, to, moved: false })}
      onPointerMove=${onMove} onPointerUp=${onUp} onPointerLeave=${onLeave} onPointerCancel=${onLeave}>
    <${Cursor} history=${history} shown=${shown} from=${from} to=${to} />
    <${Tokens} ...${all} budget=${history.engine.token_budget} />
    <${Figure} title="Slots" legend=${LANES}
        note="One lane per slot with the request in it. A prompt fills its lane from below as it is read;
          it waits where a tick had no room for it. Click a lane to follow its request.">
      <${Lanes} history=${history} ...${all} selected=${state.request} lane=${state.lane} /><//>
    <${TickTime} ...${all} target=${history.engine.itl_target_s ?? 0} />
    <${Queue} ...${all} />
    <${KvUse} ...${all} />
  </div>`;
}

/** The chosen tick: a line over all plots, and a slider for keys and screen readers. */
function Cursor({ history, shown, from, to }) {
  const at =
    shown && shown.tick_id >= from && shown.tick_id <= to
      ? (shown.tick_id - from + 0.5) / (to - from + 1)
      : null;
  const marked = at !== null && (view.get().pinned !== null || view.get().hovered !== null);
  const text = shown
    ? `Tick ${shown.tick_id}, ${clockTime(history.unix(shown.started_s))}: ${shown.n_decode} decode and ` +
      `${shown.n_prefill} prefill tokens in ${duration(shown.total_s)}`
    : "No tick";
  const onKey = (event) => {
    if (!move(history, event.key, event.shiftKey)) return;
    event.preventDefault();
  };
  const style = { left: `calc(${GUTTER}px + (100% - ${GUTTER + MARGIN}px) * ${at ?? 0})` };
  return html`<div class="cursor" role="slider" tabindex="0" aria-label="Tick" aria-valuemin=${history.firstId}
      aria-valuemax=${Math.max(history.lastId, 0)} aria-valuenow=${shown?.tick_id ?? 0} aria-valuetext=${text}
      aria-description="Arrow keys choose a tick, up and down a slot, Enter its request, Space pauses."
      onKeyDown=${onKey}>
    ${marked && html`<div class=${`cursor-line ${isLive() ? "" : "pinned"}`} style=${style}></div>`}
  </div>`;
}
