// One streamed request, its answers, and what the client can measure of them.
import { call } from "../parts/api.js";
import { eventsOf } from "../parts/sse.js";
import { makeStore } from "../parts/store.js";
import { newId } from "./conversations.js";
import { cancelStream, eventsInSpiteOfCuts, pauseOver } from "./resume.js";

const now = () => performance.now() / 1000;

/**
 * Send a chat request. Returns its body, `stop`, a promise of its end (`done`), and a store per answer, which fills.
 * `begun` is what they hold already, where an answer is continued.
 *
 * Several answers are one request with `n`, because browsers open only six connections to one server.
 */
export function ask(body, begun = {}) {
  const abort = new AbortController();
  const xRequestId = newId();
  const answers = Array.from({ length: body.n ?? 1 }, () => makeStore({ ...nothingOf(body, xRequestId), ...begun }));
  const done = ended(answers, take(open(body, xRequestId, abort.signal), answers));
  return { answers, body, done, stop: () => abort.abort() };
}

/**
 * Do the same with one answer that outlives its reader: `readOn` continues to read its `stream`, also in another tab.
 * `resumable` says for how long: true, a while; "stored", to its end, and from then on.
 */
export function askToKeep(body, { begun = {}, tab = null, resumable = true } = {}) {
  const xRequestId = newId(); // and the stream's
  const stream = { id: xRequestId, after: 0, tab, stored: resumable === "stored" };
  const answer = makeStore({ ...nothingOf(body, xRequestId), ...begun, stream });
  return keptRun(answer, body, (signal) => open({ ...body, resumable }, xRequestId, signal, stream.id));
}

/** Read on an answer; `begun` is what this page has of it, and says how far that is. */
export const readOn = (begun) => keptRun(makeStore({ ...begun, xRequestId: begun.stream.id }), null, null);

function keptRun(answer, body, begin) {
  const abort = new AbortController();
  const stop = () => {
    abort.abort();
    const { stream, nDeltas } = answer.get();
    if (stream.after || !nDeltas) cancelStream(stream.id); // else it is a plain one, and ends with its connection
  };
  const events = eventsInSpiteOfCuts(answer, begin, abort.signal);
  return { answers: [answer], body, done: ended([answer], take(events, [answer])), stop };
}

async function* open(body, id, signal, stream = null) {
  yield* eventsOf(await call("v1/chat/completions", { body, id, stream, signal }));
}

const nothingOf = ({ n = 1 }, xRequestId) => ({
  status: "waiting", // then streaming; in the end done, stopped or failed
  part: null, // what came last: reasoning, text or calls
  reasoning: "",
  text: "",
  calls: [], // {id, name, args, result: {content} or {error}, null until there is one}
  nAnswers: n,
  sentS: now(),
  ttftS: null, // send to first text or reasoning, as the client saw it
  reasonedS: 0, // how long it reasoned
  lastS: null, // the last of these, then the end
  nDeltas: 0,
  finishReason: null,
  usage: null, // of all answers together
  timings: null, // of this answer, by the server's clock
  error: null,
  requestId: null, // as the engine calls it, known with the first token
  xRequestId, // as the page calls it, of all answers together
  stream: null, // {id, after, tab, stored}: where it can be read on, behind which event, who asked, if it stays
  pause: null, // {why: network or engine, sinceMs}: why nothing comes
  pauses: [], // those that are over: {why, tookS}
  tokens: [], // of the text, where they were requested: {text, logprob, top: [[text, logprob], …]}
});

const ended = (answers, reading) =>
  reading.catch((error) => {
    const stopped = error.name === "AbortError";
    end(answers, stopped ? { status: "stopped", lastS: now() } : { status: "failed", error: failureOf(error) });
  });

/** A connection that breaks off is a TypeError, with words that nobody understands. */
const failureOf = (error) =>
  error instanceof TypeError
    ? { message: "The connection to the server was lost. The text so far was kept.", cause: error }
    : error;

async function take(events, answers) {
  for await (const { data } of events) {
    if (data === "[DONE]") break;
    add(JSON.parse(data), answers);
  }
  if (answers.some((answer) => isOpen(answer.get()))) {
    throw new Error("The stream ended without a reason. The server may be down.");
  }
}

const STOPPED = "stream_stopped"; // in another tab

function add(chunk, answers) {
  if (chunk.error) {
    const stopped = chunk.error.code === STOPPED;
    end(answers, stopped ? { status: "stopped", lastS: now() } : { status: "failed", error: chunk.error });
    return;
  }
  for (const choice of chunk.choices) {
    const requestId = answers.length > 1 ? `${chunk.id}-${choice.index}` : chunk.id;
    answers[choice.index].set({ requestId, ...patchOf(choice, answers[choice.index].get()) });
  }
  const { usage, timings } = chunk;
  answers.forEach((answer, i) => {
    const own = answers.length > 1 ? timings?.choices?.[i] : timings;
    if (usage || own) answer.set({ ...(usage && { usage }), ...(own && { timings: own }) });
  });
}

function patchOf({ delta, logprobs, finish_reason: finishReason }, was) {
  const at = now();
  const reasonedS = was.reasonedS + (was.part === "reasoning" ? at - was.lastS : 0);
  const patch = finishReason ? { finishReason, status: "done", reasonedS, lastS: at } : {};
  const growth = growthOf(delta ?? {}, was);
  const tokens = growth.part === "text" ? (logprobs?.content ?? []).map(tokenOf) : [];
  if (!growth.part) return patch;
  return {
    status: "streaming",
    ...growth,
    ...(tokens.length && { tokens: [...was.tokens, ...tokens] }),
    nDeltas: was.nDeltas + 1,
    ttftS: was.ttftS ?? at - was.sentS,
    ...(was.pause?.why === "network" && pauseOver(was)),
    reasonedS,
    lastS: at,
    ...patch,
  };
}

const tokenOf = ({ token: text, logprob, top_logprobs: top = [] }) => ({
  text,
  logprob,
  top: top.map((other) => [other.token, other.logprob]),
});

/** What a delta adds to its answer; of what there is more than one, the last is the part. */
function growthOf({ reasoning_content: reasoning, content, tool_calls: pieces }, was) {
  return {
    ...(reasoning && { part: "reasoning", reasoning: was.reasoning + reasoning }),
    ...(content && { part: "text", text: was.text + content }),
    ...(pieces?.length && { part: "calls", calls: pieces.reduce(withPiece, was.calls) }),
  };
}

/** Tool calls, and a piece of one more or of one of them; only its first piece has the id and the name. */
function withPiece(calls, { index, id, function: { name, arguments: args = "" } }) {
  const grown = [...calls];
  const was = calls[index] ?? { id: null, name: "", args: "", result: null };
  grown[index] = { ...was, id: id ?? was.id, name: name ?? was.name, args: was.args + args };
  return grown;
}

/** End whatever is still open. */
function end(answers, patch) {
  for (const answer of answers) if (isOpen(answer.get())) answer.set(patch);
}

/** Output tokens: as the feed or the server reports them, until then the least it can be. */
export const tokensOf = (answer, request = null) =>
  outputOf(answer, request) ?? Math.max(answer.nDeltas, request?.n_output ?? 0);

/** Output tokens where they are known, else null. */
export const outputOf = (answer, request = null) =>
  (request?.state === "ended" && !request.unseen ? request.n_output : countedOf(answer)?.completion_tokens) ??
  answer.timings?.completion_tokens ??
  null;

/** What the server counted of this answer; of several it counts only all of them together. */
export const countedOf = ({ nAnswers, usage }) => (nAnswers === 1 ? usage : null);

const LEAST_TOKENS = 8; // fewer, or in a shorter time, say nothing of a pace
const LEAST_S = 0.2;

/**
 * Tokens per second after the first, and who says so: `{perSecond, from}`, or null.
 *
 * The server's own number comes with the end. Until then, or without one, it is the pace in the feed at `nowS`;
 * without a feed, that at which an ended answer came here.
 */
export function paceOf(answer, request = null, nowS = null) {
  if (answer.timings) {
    const { tokens_per_second: perSecond } = answer.timings;
    return perSecond == null ? null : { perSecond, from: "server" };
  }
  if (request?.first_token_s != null && !request.unseen) {
    const n = request.n_output - (request.n_said ?? 0);
    return paced(n, (request.ended_s ?? nowS) - request.first_token_s, "feed");
  }
  if (isOpen(answer) || answer.ttftS === null) return null;
  return paced(tokensOf(answer, request), answer.lastS - answer.sentS - answer.ttftS, "page");
}

const paced = (n, seconds, from) =>
  n >= LEAST_TOKENS && seconds >= LEAST_S ? { perSecond: (n - 1) / seconds, from } : null;

export const isOpen = (answer) => answer.status === "waiting" || answer.status === "streaming";
