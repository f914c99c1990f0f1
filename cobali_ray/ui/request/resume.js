// Reading a stream on: after the connection was cut, after the page was loaded again, in another tab. No drawing.
import { call } from "../parts/api.js";
import { eventsOf } from "../parts/sse.js";

const RETRY_S = [0.5, 1, 2, 4];
const N_TRIES = RETRY_S.length; // until it is known whether the server has the stream at all
const KEPT_S = 300; // how long the server keeps a stream that nobody reads
const LOST = "The server no longer has this answer: it was restarted, or nobody read it for five minutes.";

/** Return the change to an answer whose events come again. */
export function pauseOver({ pause, pauses }, nowMs = Date.now()) {
  if (!pause) return {};
  return { pause: null, pauses: [...pauses, { why: pause.why, tookS: (nowMs - pause.sinceMs) / 1000 }] };
}

/**
 * Yield the events of an answer's stream until `[DONE]`, each once, over as many connections as it takes.
 *
 * `begin(signal)` yields those of the first connection; null: the stream exists, and is read behind the last event
 * that is in the answer. How far it is read stands in the answer's `stream.after`, and while nobody answers it has a
 * `pause`. It is tried again for as long as the server may have the stream, a `stored` one without an end. Throws an
 * AbortError, and what ends the answer.
 */
export async function* eventsInSpiteOfCuts(answer, begin, signal) {
  let [nTries, nEvents, exists, cutMs] = [0, 0, begin === null, null];
  for (let connect = begin; ; connect = null) {
    try {
      for await (const event of connect ? connect(signal) : behind(answer, signal)) {
        [nTries, nEvents, exists, cutMs] = [0, nEvents + 1, true, null];
        yield event;
        if (event.id) answer.set({ stream: { ...answer.get().stream, after: Number(event.id) } });
        if (event.data === "[DONE]") return;
      }
      if (isPlain(answer, nEvents)) return;
    } catch (error) {
      if (!isCut(error)) throw streamError(error, exists, answer.get());
      if (isPlain(answer, nEvents)) throw error;
      cutMs ??= Date.now();
      const isLost = !answer.get().stream.stored && Date.now() - cutMs > KEPT_S * 1000;
      if (exists ? isLost : nTries >= N_TRIES) throw error;
    }
    const { pause } = answer.get();
    if (!pause) answer.set({ pause: { why: "network", sinceMs: Date.now() } });
    await rest(RETRY_S[Math.min(nTries, RETRY_S.length - 1)] * 1000, signal);
    nTries += 1;
  }
}

/** Whether there was no room for the stream: its events have no numbers. */
const isPlain = (answer, nEvents) => nEvents > 0 && !answer.get().stream.after;

async function* behind(answer, signal) {
  const { id, after } = answer.get().stream;
  const response = await call(`v1/streams/${id}?after=${after}`, { signal });
  if (answer.get().pause?.why === "network") answer.set(pauseOver(answer.get()));
  yield* eventsOf(response);
}

/** Nobody answered, or only a proxy, or the connection broke off. */
const isCut = (error) =>
  error.status === 0 || error instanceof TypeError || ([502, 503, 504].includes(error.status) && error.type === null);

function streamError(error, exists, { text }) {
  if (error.code !== "stream_not_found") return error;
  if (!exists) return new Error("The server does not answer.");
  return Object.assign(new Error(`${LOST}${text ? " The text so far was kept." : ""}`), { code: null });
}

/** Have the server stop an answer; where it does not know of it yet, or nobody answers, a little later again. */
export async function cancelStream(id) {
  for (const waitS of [...RETRY_S, null]) {
    try {
      await call(`v1/streams/${id}`, { method: "DELETE" });
      return;
    } catch (error) {
      if (waitS === null || !(isCut(error) || error.status === 404)) return;
      await rest(waitS * 1000);
    }
  }
}

/** Wait; at most until the network is back or the page is looked at again. */
function rest(ms, signal) {
  return new Promise((resolve, reject) => {
    const end = (finish) => () => {
      clearTimeout(timer);
      removeEventListener("online", goOn);
      document.removeEventListener("visibilitychange", goOn);
      signal?.removeEventListener("abort", leave);
      finish();
    };
    const goOn = end(resolve);
    const leave = end(() => reject(signal.reason));
    const timer = setTimeout(goOn, ms);
    addEventListener("online", goOn);
    document.addEventListener("visibilitychange", goOn);
    signal?.addEventListener("abort", leave);
    if (signal?.aborted) leave();
  });
}
