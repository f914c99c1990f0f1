// What the comparison holds: what is compared, the prompt, and the answers that came. No drawing.
import { forGood, keep, kept, makeStore } from "../parts/store.js";
import { ask, isOpen } from "../request/chat.js";
import { modelOf, models } from "../request/models.js";
import { FIELDS, bodyOf, play } from "../request/params.js";

export const MOST_STREAMS = 16;
const LONGEST_NAME = 40;

/** What may differ between the two sides of a comparison of settings. */
export const CHANGEABLE = [{ name: "system", label: "System prompt" }, ...FIELDS];

/** Choices outlive the page, answers do not. */
const CHOICES = {
  kind: "streams", // or models, or settings
  streams: 4, // as typed
  pair: ["", ""], // models; "" is the first that the other side has not
  changes: { temperature: "1" }, // the settings in which B differs; all others are as in A
  draft: "",
};

export const comparison = makeStore({ ...CHOICES, ...kept(forGood, "comparison", {}), compared: null });

/** Choose something, and keep it. */
export function choose(patch) {
  comparison.set(patch);
  const state = comparison.get();
  keep(forGood, "comparison", Object.fromEntries(Object.keys(CHOICES).map((name) => [name, state[name]])));
}

/** What can be compared: two models only where there are two. */
export const kindOf = ({ kind }) => (kind === "models" && models.get().all.length < 2 ? "streams" : kind);

/** Give B another value of a setting; null makes it the same as in A. */
export function differ(name, value) {
  const { [name]: _, ...others } = comparison.get().changes;
  choose({ changes: value === null ? others : { ...comparison.get().changes, [name]: value } });
}

/** The two models of a comparison of models; never one twice. */
export function pairOf({ pair }) {
  const names = models.get().all.map(({ id }) => id);
  const pick = (chosen, other) =>
    names.includes(chosen) && chosen !== other ? chosen : names.find((id) => id !== other);
  const left = pick(pair[0], null);
  return [left, pick(pair[1], left)];
}

export const firstModel = () =>
  kindOf(comparison.get()) === "models" ? pairOf(comparison.get())[0] : play.get().model;

/** Return how many streams to compare, as typed, within bounds; and keep it. */
export function keepStreams() {
  const streams = Math.max(1, Math.min(MOST_STREAMS, Math.round(Number(comparison.get().streams)) || 1));
  choose({ streams });
  return streams;
}

/** The runs that are on their way. */
export const openRuns = ({ compared }) =>
  (compared?.runs ?? []).filter(({ answers }) => answers.some((answer) => isOpen(answer.get())));

export function compare(prompt) {
  if (prompt.trim()) start(kindOf(comparison.get()), prompt, planOf(prompt));
}

export function again() {
  const { kind, prompt, plan } = comparison.get().compared;
  start(kind, prompt, plan);
}

function start(kind, prompt, plan) {
  if (openRuns(comparison.get()).length) return;
  const runs = plan.map(({ body }) => ask(body));
  const sides = plan.flatMap(({ names, body }, i) =>
    names.map((name, k) => ({ name, body, answer: runs[i].answers[k] })),
  );
  comparison.set({ compared: { kind, prompt, plan, runs, sides } });
  Promise.all(runs.map(({ done }) => done)).then(() => comparison.set({})); // whoever watches looks again
}

/** Stop every answer; the server frees their slots at the next tick. */
export const stop = () => openRuns(comparison.get()).forEach((run) => run.stop());

export function clear() {
  stop();
  comparison.set({ compared: null });
}

/** The requests that would be sent, or were sent last. */
export function currentBodies() {
  const { compared, draft } = comparison.get();
  const sent = compared && (!draft.trim() || draft === compared.prompt);
  const plan = sent ? compared.plan : planOf(draft.trim() ? draft : "Hello!");
  return plan.map(({ body }) => body);
}

/** The requests of a comparison, and what the answers of each are called. */
function planOf(prompt) {
  const state = comparison.get();
  const { settings, model: chosen } = play.get();
  const model = modelOf(chosen);
  const body = (of, changes = {}) => bodyOf({ ...settings, ...changes }, of, [], prompt);
  switch (kindOf(state)) {
    case "models":
      return pairOf(state).map((id) => ({ names: [id], body: body(id) }));
    case "settings":
      return [
        { names: [nameOf("A", state.changes, settings)], body: body(model) },
        { names: [nameOf("B", state.changes, state.changes)], body: body(model, state.changes) },
      ];
    default: {
      const n = keepStreams();
      const names = Array.from({ length: n }, (_, i) => `Stream ${i + 1}`);
      return [{ names, body: { ...body(model), n } }];
    }
  }
}

/** Name a side after the settings in which it differs. */
function nameOf(letter, changes, settings) {
  const differences = CHANGEABLE.filter(({ name }) => name in changes).map(({ name, label }) => {
    const value = String(settings[name] ?? "").trim();
    const short = value.length > LONGEST_NAME ? `${value.slice(0, LONGEST_NAME)}…` : value;
    return `${label.toLowerCase()} ${short || (name === "system" ? "none" : "default")}`;
  });
  return [letter, differences.join(", ")].filter(Boolean).join(" · ");
}
