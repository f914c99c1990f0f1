// Talking: messages are sent, answers asked for, stopped, continued and kept as they grow. No drawing.
import { makeStore } from "../parts/store.js";
import { askToKeep, isOpen, readOn } from "../request/chat.js";
import {
  apiMessages,
  lookAt,
  messageOf,
  newId,
  pathOf,
  pathTo,
  withChange,
  withMessage,
} from "../request/conversations.js";
import { modelOf } from "../request/models.js";
import { bodyOf } from "../request/params.js";
import { pauseOver } from "../request/resume.js";
import { definitionsOf, runTool, serverOf } from "../request/toolbox.js";
import { watchEngine } from "./away.js";
import { TAB } from "./draft.js";
import { change, current, hold, library, release } from "./library.js";
import { isOnServer } from "./place.js";

/** How often in a row a model may call tools without a message of the user. */
const MOST_ROUNDS = 8;
const KEEP_MS = 500; // between two writes of a growing answer
const KEEP_ON_SERVER_MS = 15_000; // which has all of it in the stream
const CUT = "The page was closed during this answer. The text so far was kept.";

/** The messages under way, by conversation. */
export const running = makeStore({ messages: {} });

const runs = new Map(); // by conversation
const answers = new Map(); // by message: its store, as `ask` makes them

/** The store of an answer, which `Answer` draws. */
export function answerOf(message) {
  const entry = answers.get(message.id);
  if (entry && (entry.live || entry.message === message)) return entry.store;
  const { id, parent, role, atMs, changedMs, model, ...value } = message;
  if (isOpen(value) && !value.stream)
    Object.assign(value, { status: "failed", error: { code: null, message: CUT } });
  const store = makeStore(value);
  answers.set(id, { store, message, live: false });
  return store;
}

/** What is kept of an answer: times from when it was sent, as the page's clock begins anew each time. */
function recordOf({ sentS, lastS, error, calls, xRequestId, pause, ...value }) {
  const failure = error && { code: error.code ?? null, message: error.message, retryAtMs: retryAt(error) };
  const made = calls.map(({ running: works, ...call }) => call);
  return { ...value, calls: made, sentS: 0, lastS: lastS === null ? null : lastS - sentS, error: failure };
}

const retryAt = ({ retryAfterS }) => (retryAfterS ? Date.now() + 1000 * retryAfterS : null);

/** Say whether an answer of the conversation in sight is under way. */
export const isRunning = () => library.get().id in running.get().messages;

/** Send a message: `{text, files, images}`. */
export function send(message) {
  const { id } = current();
  if (isRunning() || !(message.text.trim() || message.files?.length || message.images?.length)) return false;
  change(id, (was) => withMessage(was, was.head, { role: "user", ...message }));
  answer(id);
  return true;
}

/** Send another version of a message; the old one and its answers stay beside it. */
export function edit({ id, parent, atMs, changedMs, ...message }, text) {
  const { id: conversation } = current();
  if (isRunning()) return;
  change(conversation, (was) => withMessage(was, parent, { ...message, text }));
  answer(conversation);
}

/** Ask for another answer; an empty one is replaced. */
export function regenerate(message) {
  const { id } = current();
  if (isRunning()) return;
  if (message.text || message.reasoning || message.calls.length) {
    change(id, (was) => ({ ...was, head: message.parent }));
    answer(id);
  } else answer(id, message);
}

export function turnTo(message) {
  if (!isRunning()) change(current().id, (was) => lookAt(was, message.id));
}

/** Say whether one can go on from an answer: it ended before its end, or its calls have results. */
export const canGoOn = ({ text, calls, status, finishReason }) =>
  calls.length
    ? calls.every(({ result }) => result)
    : Boolean(text) && (status !== "done" || finishReason === "length");

/** Go on from an answer: with its own text, or with the results of its calls. */
export function goOn(message) {
  if (isRunning()) return;
  if (message.calls.length) answer(current().id);
  else answer(current().id, message, { continued: true });
}

/** Go on from another beginning of an answer, of these tokens, as another version of it. */
export function branchWith({ id, parent, atMs, changedMs, ...message }, text, tokens) {
  const { id: conversation } = current();
  if (isRunning()) return;
  const ended = { status: "stopped", calls: [], usage: null, timings: null, error: null, stream: null, pauses: [] };
  change(conversation, (was) => withMessage(was, parent, { ...message, ...ended, text, tokens }));
  const { messages, head } = current();
  answer(conversation, messageOf({ messages }, head), { continued: true });
}

/** Take the result of a call, `{content}` or `{error}`, as somebody typed it; with the last one all are sent. */
export function giveResult(message, callId, result) {
  const { id } = current();
  if (isRunning()) return;
  const calls = message.calls.map((call) => (call.id === callId ? { ...call, result } : call));
  change(id, (was) => withChange(was, message.id, { calls }));
  if (calls.every((call) => call.result)) answer(id);
}

/** Stop the answer under way; the server frees its slot at the next tick. */
export const stop = (id = library.get().id) => runs.get(id)?.stop();

/** Ask for the answer to a branch: as a new message behind its head, or in the place of one. */
function answer(id, place = null, { continued = false } = {}) {
  const was = library.get().held[id];
  const behind = place ? (continued ? place.id : place.parent) : was.head;
  const body = {
    ...bodyFor(was, pathTo(was, behind)),
    ...(continued && { continue_final_message: true }),
  };
  const { text, reasoning, reasonedS, tokens = [] } = place ?? {};
  const begun = continued ? { text, reasoning, reasonedS, tokens } : {};
  const run = askToKeep(body, { begun, tab: TAB, resumable: isOnServer() ? "stored" : true });
  const [store] = run.answers;
  const record = { ...recordOf(store.get()), model: body.model ?? null, sentMs: Date.now() };
  change(id, (all) =>
    place ? withChange(all, place.id, record) : withMessage(all, all.head, { role: "assistant", ...record }),
  );
  const message = place?.id ?? library.get().held[id].head;
  follow(id, message, run);
}

/**
 * Read on the answer that ends the branch in sight, where it was under way when it was kept: before the page was
 * loaded again, or in another tab. Its tools are run by the tab that asked for it.
 */
export function followOpen() {
  const { id, messages, head } = current(); // what was drawn last may have ended since
  const message = messageOf({ messages }, head);
  if (runs.has(id) || message?.role !== "assistant" || !message.stream || !isOpen(message)) return;
  const { parent, role, atMs, changedMs, model, id: place, ...value } = message;
  const agoMs = Math.max(0, Date.now() - (value.sentMs ?? atMs)); // 0: the clock was put back
  const sentS = (performance.now() - agoMs) / 1000;
  const lastS = value.lastS === null ? null : sentS + value.lastS;
  follow(id, place, readOn({ ...value, sentS, lastS, pause: null, pauses: value.pauses ?? [] }));
}

/** Keep an answer as it grows and as it ends; run the tools that it calls. */
async function follow(id, message, run) {
  const {
    answers: [store],
  } = run;
  let [written, saved] = [null, null];
  const write = () => {
    if (written === store.get()) return;
    written = store.get();
    saved = change(id, (was) => withChange(was, message, recordOf(written)));
  };
  let stopped = false;
  const stopIt = () => {
    stopped = true;
    run.stop();
  };
  runs.set(id, { stop: stopIt });
  answers.set(message, { store, live: true, message: null });
  running.set({ messages: { ...running.get().messages, [id]: message } });
  hold(id, stopIt);
  const timer = setInterval(write, isOnServer() ? KEEP_ON_SERVER_MS : KEEP_MS);
  addEventListener("pagehide", write);
  const unwatch = watchEngine(store);
  await run.done;
  unwatch();
  store.set(pauseOver(store.get()));
  const asker = store.get().stream.tab === TAB;
  const settings = library.get().held[id]?.settings ?? {};
  if (store.get().status === "done" && asker) await useTools(store, settings, () => stopped);
  clearInterval(timer);
  removeEventListener("pagehide", write);
  write();
  if (isOnServer()) letGo(saved, store.get());
  const kept = messageOf(library.get().held[id] ?? { messages: [] }, message);
  answers.set(message, { store, live: false, message: kept });
  runs.delete(id);
  release(id, stopIt);
  const { [id]: ended, ...others } = running.get().messages;
  running.set({ messages: others });
  if (asker && !stopped && kept?.calls.length && canGoOn(kept) && nRounds(id) < MOST_ROUNDS) answer(id);
}

/** Have the server forget the stream of an answer that has ended and is whole in its conversation there. */
async function letGo(saved, { status, stream: { id, after } }) {
  if ((await saved) && after && status !== "failed") (await import("./served.js")).forget(id);
}

/**
 * Run the tools of an answer one after the other, unless somebody stops it; those of the user, and of servers that
 * ask before, have no result.
 */
async function useTools(store, settings, isStopped) {
  const put = (i, patch) =>
    store.set({ calls: store.get().calls.map((call, j) => (i === j ? { ...call, ...patch } : call)) });
  for (const [i, { id, name, args }] of store.get().calls.entries()) {
    if (isStopped()) return;
    const server = serverOf(name, settings);
    put(i, { id: id ?? `call_${newId()}`, running: true, ...(server && { server }) });
    put(i, { running: false, result: await runTool(name, args, { server }) });
  }
}

/** How often the model called tools since the last message of the user. */
function nRounds(id) {
  const path = pathOf(library.get().held[id]);
  return path.length - 1 - path.findLastIndex(({ role }) => role === "user");
}

/** The request that would be sent, or was sent last. */
export function currentBody({ text, files, images }) {
  const conversation = current();
  const { head } = conversation;
  const last = messageOf(conversation, head);
  if (!text.trim() && last)
    return bodyFor(conversation, pathTo(conversation, last.role === "user" ? head : last.parent));
  const message = { role: "user", text: text.trim() ? text : "Hello!", files, images };
  return bodyFor(conversation, [...pathOf(conversation), message]);
}

function bodyFor({ settings, model }, path) {
  const tools = definitionsOf(settings).map(({ server, ...definition }) => definition);
  return { ...bodyOf(settings, modelOf(model), apiMessages(path)), ...(tools.length && { tools }) };
}
