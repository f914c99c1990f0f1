// One streamed answer, and what the client can measure of it.
import { call } from "./api.js";
import { eventsOf } from "./sse.js";
import { makeStore } from "./store.js";

const now = () => performance.now() / 1000;

/** Send a chat request. Returns the answer as a store that fills, its body, and `stop`. */
export function ask(body) {
  const abort = new AbortController();
  const answer = makeStore({
    status: "waiting", // then streaming; in the end done, stopped or failed
    text: "",
    sentS: now(),
    ttftS: null, // send to first text, as the client saw it
    lastS: null,
    nDeltas: 0,
    finishReason: null,
    usage: null,
    timings: null,
    error: null,
    requestId: null,
  });
  const finished = stream(body, answer, abort.signal).catch((error) => {
    const stopped = error.name === "AbortError";
    answer.set({ status: stopped ? "stopped" : "failed", error: stopped ? null : error });
  });
  return { answer, body, finished, stop: () => abort.abort() };
}

async function stream(body, answer, signal) {
  const response = await call("v1/chat/completions", { body, signal });
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") break;
    take(JSON.parse(data), answer);
  }
  const { status, finishReason } = answer.get();
  if (status === "failed") return;
  if (finishReason === null) throw new Error("The stream ended without saying why: the server is gone.");
  answer.set({ status: "done" });
}

function take(chunk, answer) {
  if (chunk.error) {
    answer.set({ status: "failed", error: chunk.error });
    return;
  }
  const was = answer.get();
  const patch = { requestId: chunk.id ?? was.requestId };
  const choice = chunk.choices?.[0];
  if (choice?.delta?.content) {
    const at = now();
    patch.text = was.text + choice.delta.content;
    patch.status = "streaming";
    patch.nDeltas = was.nDeltas + 1;
    patch.ttftS = was.ttftS ?? at - was.sentS;
    patch.lastS = at;
  }
  if (choice?.finish_reason) patch.finishReason = choice.finish_reason;
  if (chunk.usage) patch.usage = chunk.usage;
  if (chunk.timings) patch.timings = chunk.timings;
  answer.set(patch);
}

/** Output tokens: counted by the server once it has ended, until then one per delta. */
export const tokensOf = (answer) => answer.usage?.completion_tokens ?? answer.nDeltas;

/** Tokens per second after the first, as the client saw them; null below two. */
export function speedOf(answer) {
  const n = tokensOf(answer);
  if (n < 2 || answer.ttftS === null) return null;
  const seconds = answer.lastS - answer.sentS - answer.ttftS;
  return seconds > 0 ? (n - 1) / seconds : null;
}

export const isOpen = (answer) => answer.status === "waiting" || answer.status === "streaming";
