// The numbers that matter most, with their units and what they are over.
import { count, digits, duration, percent } from "./format.js";
import { html } from "./preact.js";

/** A row of numbers above the plots. */
export function Tiles({ history, summary }) {
  const { ttft, itl, last } = summary;
  const { engine } = history;
  const busy = [...history.requests.values()].filter((r) => r.state !== "ended" && r.slot_id !== null).length;
  const waiting = [...history.requests.values()].filter((r) => r.state === "queued").length;
  const used = last ? (last.n_cells_used - last.n_cells_idle) / last.n_cells : 0;
  const target = last?.target_s || engine.itl_target_s;
  return html`<dl class="tiles">
    <${Tile} name="Output" value=${digits(summary.outputRate)} unit="tokens/s" note="last 5 seconds" />
    <${Tile} name="Prefill" value=${digits(summary.prefillRate)} unit="tokens/s" note="prompts read, last 5 seconds" />
    <${Tile} name="Ticks" value=${digits(summary.tickRate)} unit="per second" note="last 5 seconds" />
    <${Tile} name="Slots busy" value=${count(busy)} unit=${`of ${count(engine.n_slots)}`} note=${waiting ? `${count(waiting)} waiting in the queue` : "nobody waits"} />
    <${Tile} name="KV cache" value=${percent(busy ? used : 0)} unit="" note=${`of ${count(engine.n_cells)} cells, running requests`} />
    <${Tile} name="TTFT p50" value=${duration(ttft.at(0.5))} unit="" note=${ttft.n ? `p95 ${duration(ttft.at(0.95))}, ${count(ttft.n)} requests, last minute` : "no first token in the last minute"} />
    <${Tile} name="ITL p50" value=${duration(itl.at(0.5))} unit=""
      note=${itl.n ? `p95 ${duration(itl.at(0.95))}, p99 ${duration(itl.at(0.99))}, last minute` : "no tokens in the last minute"} />
    <${Tile} name="ITL target" value=${duration(target)} unit="" note=${target ? "prefill keeps token gaps below it" : "set itl_target_ms to have one"} />
  </dl>`;
}

function Tile({ name, value, unit, note }) {
  return html`<div class="tile"><dt>${name}</dt><dd><b>${value}</b> ${unit}<small>${note}</small></dd></div>`;
}
