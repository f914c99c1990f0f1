// What the playground holds: settings, the conversation, the comparison. No drawing.
import { call } from "./api.js";
import { ask, isOpen } from "./chat.js";
import { DEFAULTS, bodyOf } from "./params.js";
import { forGood, keep, kept, makeStore } from "./store.js";

export const MOST_STREAMS = 16;

export const play = makeStore({
  mode: "chat", // or compare
  settings: { ...DEFAULTS, ...kept(forGood, "settings", {}) },
  models: [],
  model: "",
  trouble: null,
  turns: [], // chat: {prompt, run}
  streams: kept(forGood, "streams", 4),
  compared: null, // {prompt, run}
  draft: "",
});

/** Change one setting and keep it. */
export function change(name, value) {
  const settings = { ...play.get().settings, [name]: value };
  keep(forGood, "settings", settings);
  play.set({ settings });
}

/** Return how many streams to compare, as typed, within bounds; and keep it. */
export function keepStreams() {
  const n = Math.max(1, Math.min(MOST_STREAMS, Math.round(Number(play.get().streams)) || 1));
  keep(forGood, "streams", n);
  return n;
}

/** Forget all settings. */
export function reset() {
  keep(forGood, "settings", null);
  play.set({ settings: { ...DEFAULTS } });
}

/** Ask which names the server's model has. */
export async function loadModels() {
  try {
    const { data } = await (await call("v1/models")).json();
    const names = data.map((model) => model.id);
    play.set({
      models: data,
      model: names.includes(play.get().model) ? play.get().model : names[0],
      trouble: null,
    });
  } catch (error) {
    play.set({ trouble: error });
  }
}

/** The runs that are on their way. */
export function openRuns({ turns, compared }) {
  const runs = [...turns, ...(compared ? [compared] : [])].map(({ run }) => run);
  return runs.filter((run) => run.answers.some((answer) => isOpen(answer.get())));
}

/** Send what is written, to one stream or to several at once. */
export function send(prompt) {
  const { mode, settings, model, turns, draft } = play.get();
  if (!prompt.trim() || openRuns(play.get()).length) return;
  if (mode === "chat") {
    play.set({
      draft: draft === prompt ? "" : draft,
      turns: [...turns, { prompt, run: ask(bodyOf(settings, model, messagesOf(turns), prompt)) }],
    });
    return;
  }
  play.set({ compared: { prompt, run: ask({ ...bodyOf(settings, model, [], prompt), n: keepStreams() }) } });
}

/** Ask the last question of the chat again, unless a run is on its way. */
export function retry() {
  const { turns } = play.get();
  if (openRuns(play.get()).length) return;
  const { prompt } = turns.at(-1);
  play.set({ turns: turns.slice(0, -1) });
  send(prompt);
}

/** Stop every stream; the server frees their slots at the next tick. */
export const stopAll = () => openRuns(play.get()).forEach((run) => run.stop());

/** Begin a new conversation. */
export function clear() {
  stopAll();
  play.set(play.get().mode === "chat" ? { turns: [] } : { compared: null });
}

/** The request that would be sent, or was sent last. */
export function currentBody() {
  const { mode, settings, model, turns, compared, draft } = play.get();
  const chat = mode === "chat";
  const sent = (chat ? turns.at(-1) : compared)?.run.body;
  if (sent && (!draft.trim() || draft === compared?.prompt)) return sent;
  const body = bodyOf(settings, model, chat ? messagesOf(turns) : [], draft.trim() ? draft : "Hello!");
  return chat ? body : { ...body, n: keepStreams() };
}

/** The conversation so far. Tool calls are left out: nobody has a result for them. */
function messagesOf(turns) {
  return turns
    .map(({ prompt, run }) => ({ prompt, ...run.answers[0].get() }))
    .filter(({ text, reasoning }) => text || reasoning)
    .flatMap(({ prompt, text, reasoning }) => [
      { role: "user", content: prompt },
      { role: "assistant", content: text, ...(reasoning && { reasoning_content: reasoning }) },
    ]);
}
