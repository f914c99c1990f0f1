// What is shown, as a file: as the server tells it, or as Chrome's trace events, which Perfetto opens.
import { DECODE } from "../feed/history.js";
import { saveText } from "../parts/clipboard.js";

const PROCESS = 1;
const TICKS = 1; // thread ids: rows of the trace
const PASSES = 2;
const FIRST_SLOT = 10;

/** Return ticks and the requests of their time as /debug/ticks sends them. */
export function recordingOf(history, ticks) {
  const [first, last] = [ticks[0], ticks.at(-1)];
  const [sinceS, untilS] = [first.started_s, last.started_s + last.total_s];
  const requests = [...history.requests.values()].filter(
    (request) => request.arrived_s <= untilS && (request.ended_s ?? Infinity) >= sinceS,
  );
  const { engine, nowS } = history;
  return { engine, now_s: nowS, unix_s: history.unix(nowS), next: last.tick_id + 1, ticks, requests };
}

/** The kinds of files: a word, what it is for, and how a recording is written. */
export const KINDS = {
  json: { word: "JSON", text: "records as /debug/ticks has them", write: (recording) => recording },
  perfetto: { word: "Perfetto", text: "a trace for ui.perfetto.dev", write: traceOf },
};

export function save(history, ticks, kind) {
  const text = JSON.stringify(KINDS[kind].write(recordingOf(history, ticks)));
  const [first, last] = [ticks[0].tick_id, ticks.at(-1).tick_id];
  const ending = kind === "perfetto" ? "perfetto.json" : "json";
  saveText(text, `cobali-${history.engine.engine_id}-ticks-${first}-${last}.${ending}`);
}

/** Return the trace of a recording. Times are microseconds of the wall clock. */
export function traceOf(recording) {
  const { engine, ticks, requests } = recording;
  const us = (s) => Math.round((s + recording.unix_s - recording.now_s) * 1e9) / 1e3;
  const slice = (tid, name, fromS, untilS, args = {}) => {
    const ts = us(fromS);
    return { ph: "X", pid: PROCESS, tid, name, ts, dur: Math.max(us(untilS) - ts, 0), args };
  };
  const held = requests.flatMap((request) => staysOf(request, recording.now_s));
  const events = [
    ...namesOf(engine),
    ...ticks.flatMap((tick) => tickOf(tick, engine, slice)),
    ...held.flatMap((stay) => stayOf(stay, ticks, slice)),
    ...requests.flatMap((request, n) => waitsOf(request, n, recording.now_s, us)),
    ...ticks.flatMap((tick) => countersOf(tick, us)),
  ];
  return { traceEvents: events, displayTimeUnit: "ms", otherData: { engine } };
}

function namesOf({ model, engine_id: engine, n_slots: nSlots }) {
  const name = (tid, text) => [
    { ph: "M", pid: PROCESS, tid, name: "thread_name", args: { name: text } },
    { ph: "M", pid: PROCESS, tid, name: "thread_sort_index", args: { sort_index: tid } },
  ];
  const args = { name: `cobali_ray ${model}, engine ${engine}` };
  const process = { ph: "M", pid: PROCESS, name: "process_name", args };
  const slots = Array.from({ length: nSlots }, (_, slot) => name(FIRST_SLOT + slot, `slot ${slot}`)).flat();
  return [process, ...name(TICKS, "tick"), ...name(PASSES, "forward pass"), ...slots];
}

/** A tick with its phases inside; with overlap, publishing is inside the forward pass. */
function tickOf(tick, engine, slice) {
  const { spans, gaps_s: _, ...args } = tick;
  const startS = tick.started_s;
  const endS = startS + tick.total_s;
  const plannedS = Math.min(startS + tick.plan_s, endS);
  const computedS = Math.min(plannedS + tick.forward_s, endS);
  const publishS = engine.overlaps ? plannedS : Math.max(endS - tick.publish_s, computedS);
  const phases = [
    ["plan", startS, plannedS],
    ["forward", plannedS, computedS],
    ["sample", computedS, Math.min(computedS + tick.sample_s, engine.overlaps ? endS : publishS)],
    ["publish", publishS, Math.min(publishS + tick.publish_s, engine.overlaps ? computedS : endS)],
  ];
  const read = tick.n_prefill ? ` + ${tick.n_prefill} prefill` : "";
  const computed = spans.map(([slot, start, length]) => `slot ${slot}: ${start}..${start + length}`).join(", ");
  return [
    slice(TICKS, `tick ${tick.tick_id}`, startS, endS, args),
    ...phases.filter(([, fromS, untilS]) => untilS > fromS).map(([name, ...times]) => slice(TICKS, name, ...times)),
    slice(PASSES, `${tick.n_decode} decode${read}`, plannedS, computedS, { spans: computed }),
  ];
}

function staysOf(request, nowS) {
  return request.stays.map(([slot, sinceS, untilS]) => ({
    request,
    slot,
    sinceS,
    untilS: untilS ?? request.ended_s ?? nowS,
  }));
}

/** A request in its slot; inside, its prompt's chunks and its decoding. */
function stayOf({ request, slot, sinceS, untilS }, ticks, slice) {
  const { stays, ...fields } = request;
  const inside = [];
  let decode = null;
  for (const tick of ticks) {
    const [fromS, endS] = [Math.max(tick.started_s, sinceS), Math.min(tick.started_s + tick.total_s, untilS)];
    if (fromS >= endS) continue;
    for (const [id, start, length, kind] of tick.spans) {
      if (id !== slot) continue;
      if (kind === DECODE) decode = { fromS: decode?.fromS ?? fromS, endS };
      else {
        const args = { tick_id: tick.tick_id };
        inside.push(slice(FIRST_SLOT + slot, `prompt ${start}..${start + length}`, fromS, endS, args));
      }
    }
  }
  if (decode) inside.push(slice(FIRST_SLOT + slot, "decode", decode.fromS, decode.endS));
  return [slice(FIRST_SLOT + slot, request.request_id, sinceS, untilS, fields), ...inside];
}

/** The time a request waited for its first slot: asynchronous, as many may at once. */
function waitsOf(request, n, nowS, us) {
  const { arrived_s: arrived, assigned_s: assigned, ended_s: ended, request_id: id } = request;
  const event = { pid: PROCESS, cat: "queue", id: n + 1, name: `waits: ${id}` };
  return [
    { ...event, ph: "b", ts: us(arrived), args: { n_prompt: request.n_prompt } },
    { ...event, ph: "e", ts: us(assigned ?? ended ?? nowS) },
  ];
}

function countersOf(tick, us) {
  const counter = (name, atS, args) => ({ ph: "C", pid: PROCESS, name, ts: us(atS), args });
  const endS = tick.started_s + tick.total_s;
  return [
    counter("tokens per tick", tick.started_s, { decode: tick.n_decode, prefill: tick.n_prefill }),
    counter("queue", endS, { requests: tick.n_queued }),
    counter("KV cells", endS, { running: tick.n_cells_used - tick.n_cells_idle, kept: tick.n_cells_idle }),
  ];
}
