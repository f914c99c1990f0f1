// A lane per slot: who held it, tick by tick, how far the prompt was, and where it had to wait.
import { DECODE } from "../feed/history.js";
import { cachedFrom } from "../feed/lives.js";
import { shortId } from "../parts/format.js";
import { html, useLayoutEffect, useRef } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { colour, theme } from "../parts/theme.js";
import { sized } from "./canvas.js";
import { WAITS, piecesOf } from "./pieces.js";
import { FONT, GUTTER, MARGIN } from "./plot.js";

/** Height of a lane in CSS pixels, so that up to 256 slots fit a screen or two. */
export const laneHeight = (nSlots) => Math.max(6, Math.min(26, Math.floor(480 / nSlots)));

/** Draw the lanes of a window; `ticks` are those to draw, `selected` is a request id, `lane` a slot. */
export function Lanes({ history, ticks, part, width, selected, lane }) {
  const canvas = useRef(null);
  const { version } = useStore(theme);
  const height = laneHeight(history.engine.n_slots) * history.engine.n_slots;
  const { axis, lo, hi } = part;
  useLayoutEffect(() => {
    if (width) paint(canvas.current, { width, height, history, ticks, part, selected, lane });
  }, [width, height, history, ticks, axis, lo, hi, selected, lane, version]);
  const busy = new Set(ticks.at(-1)?.spans.map(([slot]) => slot)).size;
  const label = `Slots: ${busy} of ${history.engine.n_slots} computed in the last tick shown.`;
  return html`<div class="plot lanes" role="img" aria-label=${label} style=${{ height: `${height}px` }}>
    <canvas ref=${canvas}></canvas></div>`;
}

function paint(canvas, { width, height, history, ticks, part, selected, lane }) {
  const ctx = sized(canvas, width, height);
  const { n_slots: nSlots } = history.engine;
  const tall = laneHeight(nSlots);
  const gap = tall > 10 ? 3 : 1;
  const perUnit = (width - GUTTER - MARGIN) / (part.hi - part.lo);
  const x = (at) => Math.min(Math.max(GUTTER + (at - part.lo) * perUnit, GUTTER), width - MARGIN);
  const leftOf = (piece) => x(part.axis.leftOf(piece.first));
  const rightOf = (piece) => x(part.axis.rightOf(piece.last));
  ctx.font = FONT;
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
    const left = leftOf(piece);
    const chunk = piece.kind !== DECODE && piece.kind !== WAITS;
    const space = rightOf(piece) - left;
    const wide = Math.max(1, space - (space > 4 && chunk ? 0.5 : 0));
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
  if (tall >= 14) write(ctx, pieces, { leftOf, rightOf, tall, gap });
}

/** Write each request's name where it is first seen, if there is room. */
function write(ctx, pieces, { leftOf, rightOf, tall, gap }) {
  const stays = new Map();
  for (const piece of pieces) {
    if (!piece.id) continue;
    const stay = stays.get(`${piece.slot} ${piece.id}`);
    if (stay) stay.last = piece.last;
    else stays.set(`${piece.slot} ${piece.id}`, { ...piece });
  }
  for (const stay of stays.values()) {
    const { slot, request } = stay;
    const room = rightOf(stay) - leftOf(stay) - 10;
    const id = shortId(request.request_id);
    const hits = request.n_cached ? ` · ${request.n_cached} cached` : "";
    const origin = hits && ` in ${cachedFrom(request)}`;
    const text = [id + hits + origin, id + hits, id].find(
      (choice) => ctx.measureText(choice).width + 8 <= room,
    );
    if (!text) continue;
    const left = leftOf(stay) + 5;
    const y = slot * tall + gap + (tall - gap) / 2;
    ctx.fillStyle = colour("label-back");
    ctx.beginPath();
    ctx.roundRect(left, y - 7, ctx.measureText(text).width + 8, 14, 3);
    ctx.fill();
    ctx.fillStyle = colour("label");
    ctx.fillText(text, left + 4, y + 0.5);
  }
}
