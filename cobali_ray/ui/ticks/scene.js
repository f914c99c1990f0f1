// A long prompt arrives beside streams: played on the running server, with a load that has bounds.
import { feed } from "../feed/feed.js";
import { call } from "../parts/api.js";
import { count, duration, some } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { makeStore, until, useStore } from "../parts/store.js";
import { follow, goLive } from "../plots/window.js";
import { ask, isOpen } from "../request/chat.js";
import { bodyOf } from "../request/params.js";

const N_STREAMS = 4;
const MOST_OUTPUT = 600; // of each stream; the scene stops them when the prompt has been read
const MOST_PROMPT = 1500; // tokens, where that many fit
const SHARE = 0.6; // of a slot, at most
const BEGUN_DELTAS = 8; // of each stream, when the prompt is sent
const MOST_MS = 60_000;
const SENTENCE = "Whoever reads this should count the lamps, the boats and the gulls, and say how many there were. ";
const REPEATS = 8; // of which the server counts the tokens

const BUSY = "The engine is answering others. The demonstration starts only when nobody has to wait for it.";

/** `phase`: null, streams, prompt; `message`: what came of it, or why it does not begin; `request`: the long one. */
const scene = makeStore({ phase: null, message: "", request: null });
let stop = null;

/** Why the scene would take something from others, or cannot be seen; "" where it may begin. */
function hindrance({ status, history }) {
  if (status !== "live" || !history) return "The engine is down.";
  if (history.engine.n_slots < 2) return "The demonstration needs two slots, and this engine has one.";
  const { n_queued: nQueued = 0 } = history.ticks.at(-1) ?? {};
  return history.nBusy || nQueued ? BUSY : "";
}

async function play() {
  const why = hindrance(feed.get());
  if (why) return void scene.set({ message: why, request: null });
  const { engine } = feed.get().history;
  const runs = [];
  let timer = null;
  const ended = new Promise((_, reject) => {
    stop = () => reject(new Error("The demonstration was stopped."));
    timer = setTimeout(() => reject(new Error("It was stopped after a minute.")), MOST_MS);
  });
  const begin = (text, most) => {
    const settings = { ignore_eos: true, max_tokens: Math.min(most, Math.floor(engine.n_ctx_slot / 4)) };
    const run = ask(bodyOf(settings, engine.model, [], text));
    runs.push(run);
    return run;
  };
  scene.set({ phase: "streams", message: "", request: null });
  goLive();
  try {
    const [long, n] = await Promise.race([promptFor(engine), ended]);
    const nStreams = Math.min(N_STREAMS, engine.n_slots - 1);
    const story = (_, i) => begin(`Tell me a story, number ${i + 1}.`, MOST_OUTPUT);
    const streams = Array.from({ length: nStreams }, story);
    await Promise.race([Promise.all(streams.map((run) => reached(run, BEGUN_DELTAS))), ended]);
    scene.set({ phase: "prompt", message: `A prompt of about ${some(n, "token")} arrives. Its pieces are orange.` });
    const run = begin(long, BEGUN_DELTAS);
    await Promise.race([reached(run, 1), ended]);
    const { requestId } = run.answers[0].get();
    await Promise.race([run.done, ended]);
    const message = await Promise.race([resultOf(requestId, nStreams), ended]);
    scene.set({ phase: null, message, request: requestId });
  } catch (error) {
    scene.set({ phase: null, message: error.message });
  } finally {
    clearTimeout(timer);
    for (const run of runs) run.stop();
  }
}

/** A prompt that fits into a slot and that no cache knows, and about how many tokens it has. */
async function promptFor({ model, n_ctx_slot: nCtx }) {
  const body = { model, messages: [{ role: "user", content: SENTENCE.repeat(REPEATS) }] };
  const { input_tokens: n } = await (await call("v1/chat/completions/input_tokens", { body })).json();
  const times = Math.max(1, Math.floor((Math.min(MOST_PROMPT, nCtx * SHARE) * REPEATS) / n));
  return [`Number ${Math.random()}. ${SENTENCE.repeat(times)}`, Math.round((n * times) / REPEATS)];
}

/** Wait until an answer has so many pieces of text. Throws what it failed with. */
async function reached({ answers: [answer] }, nDeltas) {
  const { error } = await until(answer, (value) => value.nDeltas >= nDeltas || !isOpen(value));
  if (error) throw error;
}

/** What the engine's ticks say of it, once they have come. */
async function resultOf(requestId, nStreams) {
  const requestIn = ({ history }) => history?.requests.get(requestId);
  const told = await until(feed, (value) => requestIn(value)?.first_token_s); // it may come later than the answer
  const request = requestIn(told);
  const during = told.history.ticks.filter(
    ({ started_s: s, n_prefill: n }) => n && s >= request.arrived_s && s < request.first_token_s,
  );
  if (!during.length) return "The demonstration is over, but its ticks have not reached this page.";
  const longest = Math.max(...during.map(({ total_s: s }) => s));
  return (
    `${count(request.n_prompt)} tokens were read in ${some(during.length, "tick")}, in ` +
    `${duration(request.first_token_s - request.arrived_s)}. Meanwhile ${some(nStreams, "stream")} went on: ` +
    `the longest they waited for a token was one tick of ${duration(longest)}.`
  );
}

/** A button that plays it, or stops it, and what came of it. */
export function Scene() {
  const { phase, message, request } = useStore(scene);
  return html`<div class="scene">
    ${
      phase
        ? html`<button onClick=${() => stop()}>Stop</button>`
        : html`<button onClick=${play}>Show me a long prompt arriving</button>`
    }
    <p role="status">${phase === "streams" ? "Streams begin …" : message}</p>
    ${request && html`<button class="quiet small" onClick=${() => follow(request)}>Follow this prompt</button>`}
  </div>`;
}
