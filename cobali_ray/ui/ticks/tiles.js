// The numbers that matter most, with their units and what they are over.
import { count, digits, duration, percent, some } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { targetNow } from "../plots/itl.js";

const NAMES = {
  TTFT: "From the arrival of the HTTP request to the first output token; half of all requests took less than p50",
  ITL: "Inter-token latency: the gap between two neighbouring tokens of one stream",
};

export function Tiles({ history, summary }) {
  const { ttft, itl, last, ratesS, quantilesS } = summary;
  const { engine } = history;
  const busy = history.nBusy;
  const waiting = [...history.requests.values()].filter((r) => r.state === "queued").length;
  const used = last ? (last.n_cells_used - last.n_cells_idle) / last.n_cells : 0;
  const target = last?.target_s || engine.itl_target_s;
  const lately = `last ${some(Math.round(ratesS), "second")}`;
  const minute = `last ${quantilesS > 59 ? "minute" : `${Math.max(1, Math.round(quantilesS))} s`}`;
  const tiles = [
    ["Output", digits(summary.outputRate), "tokens/s", lately],
    ["Prefill", digits(summary.prefillRate), "tokens/s", `prompts read, ${lately}`],
    ["Ticks", digits(summary.tickRate), "per second", lately],
    [
      "Slots busy",
      count(busy),
      `of ${count(engine.n_slots)}`,
      waiting ? `${count(waiting)} waiting in the queue` : "nobody waits",
    ],
    ["KV cache", percent(busy ? used : 0), "", `of ${count(engine.n_cells)} cells, running requests`],
    [
      "TTFT p50",
      duration(ttft.at(0.5)),
      "",
      ttft.n
        ? `p95 ${duration(ttft.at(0.95))}, ${some(ttft.n, "request")}, ${minute}`
        : `no first token in the ${minute}`,
    ],
    [
      "ITL p50",
      duration(itl.at(0.5)),
      "",
      itl.n
        ? `p95 ${duration(itl.at(0.95))}, p99 ${duration(itl.at(0.99))}, ${minute}`
        : `no tokens in the ${minute}`,
    ],
    ["ITL target", duration(target), "", targetNow(engine, last, busy)],
  ];
  return html`<dl class="tiles">
    ${tiles.map(
      ([name, value, unit, note]) => html`<div class="tile" key=${name} title=${NAMES[name.split(" ")[0]]}>
        <dt>${name}</dt><dd><b>${value}</b> ${unit}<small>${note}</small></dd></div>`,
    )}
  </dl>`;
}
