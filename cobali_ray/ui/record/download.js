// What is shown, as a file.
import { saveText } from "../parts/clipboard.js";
import { traceOf } from "./traceevents.js";

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

/** Save ticks as a file of a kind. */
export function save(history, ticks, kind) {
  const text = JSON.stringify(KINDS[kind].write(recordingOf(history, ticks)));
  const [first, last] = [ticks[0].tick_id, ticks.at(-1).tick_id];
  const ending = kind === "perfetto" ? "perfetto.json" : "json";
  saveText(text, `cobali-${history.engine.engine_id}-ticks-${first}-${last}.${ending}`);
}
