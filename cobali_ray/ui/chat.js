// One streamed request, its answers, and what the client can measure of them.
import { call } from "./api.js";
import { eventsOf } from "./sse.js";
import { makeStore } from "./store.js";

const now = () => performance.now() / 1000;

/**
 * Send a chat request. Returns its body, `stop`, and a store per answer, which fills.
 *
 * Several answers are one request with `n`, because browsers open only six connections to one server.
 */
export function ask(body) {
  const abort = new AbortController();
  const sentS = now();
  const nAnswers = body.n ?? 1;
  const answers = Array.from({ length: nAnswers }, () =>
    makeStore({
      status: "waiting", // then streaming; in the end done, stopped or failed
      part: null, // what came last: reasoning, text or calls
      reasoning: "",
      text: "",
      calls: [], // {name, args}
      nAnswers,
      sentS,
      ttftS: null, // send to first text or reasoning, as the client saw it
      reasonedS: 0, // how long it reasoned
      lastS: null, // the last of these, then the end
      nDeltas: 0,
      finishReason: null,
      usage: null, // of all answers together
      timings: null,
      error: null,
      requestId: null, // as the engine calls it
    }),
  );
  stream(body, answers, abort.signal).catch((error) => {
    const stopped = error.name === "AbortError";
    end(answers, stopped ? { status: "stopped", lastS: now() } : { status: "failed", error });
  });
  return { answers, body, stop: () => abort.abort() };
}

async function stream(body, answers, signal) {
  const response = await call("v1/chat/completions", { body, signal });
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") break;
    take(JSON.parse(data), answers);
  }
  if (answers.some((answer) => isOpen(answer.get()))) {
    throw new Error("The stream ended without saying why: the server is gone.");
  }
}

function take(chunk, answers) {
  if (chunk.error) {
    end(answers, { status: "failed", error: chunk.error });
    return;
  }
  for (const choice of chunk.choices) {
    const requestId = answers.length > 1 ? `${chunk.id}-${choice.index}` : chunk.id;
    answers[choice.index].set({ requestId, ...patchOf(choice, answers[choice.index].get()) });
  }
  const { usage, timings } = chunk;
  if (usage || timings)
    for (const answer of answers) answer.set({ ...(usage && { usage }), ...(timings && { timings }) });
}

function patchOf({ delta, finish_reason: finishReason }, was) {
  const at = now();
  const reasonedS = was.reasonedS + (was.part === "reasoning" ? at - was.lastS : 0);
  const patch = finishReason ? { finishReason, status: "done", reasonedS, lastS: at } : {};
  const said = saidOf(delta ?? {}, was);
  if (!said.part) return patch;
  return {
    status: "streaming",
    ...said,
    nDeltas: was.nDeltas + 1,
    ttftS: was.ttftS ?? at - was.sentS,
    reasonedS,
    lastS: at,
    ...patch,
  };
}

/** What a delta adds to its answer; of what there is more than one, the last is the part. */
function saidOf({ reasoning_content: reasoning, content, tool_calls: pieces }, was) {
  return {
    ...(reasoning && { part: "reasoning", reasoning: was.reasoning + reasoning }),
    ...(content && { part: "text", text: was.text + content }),
    ...(pieces?.length && { part: "calls", calls: pieces.reduce(withPiece, was.calls) }),
  };
}

/** Tool calls, and a piece of one more or of one of them; only its first piece has the name. */
function withPiece(calls, { index, function: { name, arguments: args = "" } }) {
  const grown = [...calls];
  const was = calls[index] ?? { name: "", args: "" };
  grown[index] = { name: name ?? was.name, args: was.args + args };
  return grown;
}

/** End whatever is still open. */
function end(answers, patch) {
  for (const answer of answers) if (isOpen(answer.get())) answer.set(patch);
}

/** Output tokens: as the engine told of this answer or the server counted them, until then the least it can be. */
export const tokensOf = (answer, told = null) =>
  outputOf(answer, told) ?? Math.max(answer.nDeltas, told?.n_output ?? 0);

/** Output tokens where they are known, else null. */
export const outputOf = (answer, told = null) =>
  (told?.state === "ended" && !told.unseen ? told.n_output : countedOf(answer)?.completion_tokens) ?? null;

/** What the server counted of this answer; of several it counts only all of them together. */
export const countedOf = ({ nAnswers, usage }) => (nAnswers === 1 ? usage : null);

/** Tokens per second after the first, as the client saw them; null below two. */
export function speedOf(answer, told = null) {
  const n = tokensOf(answer, told);
  if (n < 2 || answer.ttftS === null) return null;
  const seconds = answer.lastS - answer.sentS - answer.ttftS;
  return seconds > 0 ? (n - 1) / seconds : null;
}

export const isOpen = (answer) => answer.status === "waiting" || answer.status === "streaming";
