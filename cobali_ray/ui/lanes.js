// A lane per slot: who held it, tick by tick, how far the prompt was, and where it had to wait.
import { shortId } from "./format.js";
import { DECODE } from "./history.js";
import { cachedFrom } from "./lives.js";
import { WAITS, piecesOf } from "./pieces.js";
import { GUTTER, MARGIN } from "./plot.js";
import { html, useLayoutEffect, useRef, useState } from "./preact.js";
import { soon, useStore } from "./store.js";
import { colour, theme } from "./theme.js";

/** Height of a lane in CSS pixels, so that up to 256 slots fit a screen or two. */
export const laneHeight = (nSlots) => Math.max(6, Math.min(26, Math.floor(480 / nSlots)));

/** Draw the lanes of the ticks `from .. to`; `selected` is a request id, `lane` a slot. */
export function Lanes({ history, ticks, from, to, selected, lane }) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const { version } = useStore(theme);
  const height = laneHeight(history.engine.n_slots) * history.engine.n_slots;
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => soon(() => setWidth(entry.contentRect.width)));
    observer.observe(canvas.current.parentNode);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (width) paint(canvas.current, { width, height, history, ticks, from, to, selected, lane });
  }, [width, height, history, ticks, from, to, selected, lane, version]);
  const busy = new Set(ticks.at(-1)?.spans.map(([slot]) => slot)).size;
  const label = `Slots: ${busy} of ${history.engine.n_slots} computed in the last tick shown.`;
  return html`<div class="plot lanes" role="img" aria-label=${label} style=${{ height: `${height}px` }}>
    <canvas ref=${canvas}></canvas></div>`;
}

function paint(canvas, { width, height, history, ticks, from, to, selected, lane }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  const { n_slots: nSlots } = history.engine;
  const tall = laneHeight(nSlots);
  const gap = tall > 10 ? 3 : 1;
  const perTick = (width - GUTTER - MARGIN) / (to - from + 1);
  const x = (id) => GUTTER + (id - from) * perTick;
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  for (let slot = 0; slot < nSlots; slot += 1) {
    const y = slot * tall;
    ctx.fillStyle = colour(slot === lane ? "lane-chosen" : "lane");
    ctx.fillRect(GUTTER, y + gap, width - GUTTER - MARGIN, tall - gap);
    if (slot % Math.ceil(13 / tall) === 0) {
      ctx.fillStyle = colour("muted");
      ctx.textAlign = "right";
      ctx.fillText(`slot ${slot}`, GUTTER - 7, y + gap / 2 + tall / 2 + 1);
    }
  }
  ctx.textAlign = "left";
  const pieces = piecesOf(history, ticks);
  for (const piece of pieces) {
    const left = x(piece.from);
    const chunk = piece.kind !== DECODE && piece.kind !== WAITS;
    const wide = Math.max(1, x(piece.to + 1) - left - (perTick > 4 && chunk ? 0.5 : 0));
    const room = tall - gap;
    const y = piece.slot * tall + gap;
    const fill = (name, top, bottom) => {
      ctx.fillStyle = colour(name);
      ctx.fillRect(left, y + room * (1 - top), wide, room * (top - bottom));
    };
    ctx.globalAlpha = selected && piece.id !== selected ? 0.5 : 1;
    if (piece.kind === WAITS) fill("waits", 1, 0);
    else if (piece.kind === DECODE) fill(selected && piece.id === selected ? "decode" : "decode-lane", 1, 0);
    else {
      fill("prefill-rest", 1, piece.share);
      fill("prefill", piece.share, piece.cached);
      fill("cached", piece.cached, 0);
    }
  }
  ctx.globalAlpha = 1;
  if (tall >= 14) write(ctx, pieces, { x, tall, gap });
}

/** Write each request's name where it is first seen, if there is room. */
function write(ctx, pieces, { x, tall, gap }) {
  const stays = new Map();
  for (const piece of pieces) {
    if (!piece.id) continue;
    const stay = stays.get(`${piece.slot} ${piece.id}`);
    if (stay) stay.to = piece.to;
    else stays.set(`${piece.slot} ${piece.id}`, { ...piece });
  }
  for (const { slot, request, from, to } of stays.values()) {
    const room = x(to + 1) - x(from) - 10;
    const id = shortId(request.request_id);
    const hits = request.n_cached ? ` · ${request.n_cached} cached` : "";
    const origin = hits && ` in ${cachedFrom(request)}`;
    const text = [id + hits + origin, id + hits, id].find(
      (choice) => ctx.measureText(choice).width + 8 <= room,
    );
    if (!text) continue;
    const left = x(from) + 5;
    const y = slot * tall + gap + (tall - gap) / 2;
    ctx.fillStyle = colour("label-back");
    ctx.beginPath();
    ctx.roundRect(left, y - 7, ctx.measureText(text).width + 8, 14, 3);
    ctx.fill();
    ctx.fillStyle = colour("label");
    ctx.fillText(text, left + 4, y + 0.5);
  }
}
