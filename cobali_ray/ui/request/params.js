// What a request can set: fields of the form, the body that they make, and what new chats and comparisons begin with.
import { forGood, keep, kept, makeStore } from "../parts/store.js";

/** Fields left empty are not sent: the server's own defaults hold. */
export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.1, hint: "0 takes the likeliest token" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, whole: true, hint: "longest answer, in tokens" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, hint: "keep the likeliest tokens up to this share" },
  { name: "top_k", label: "Top k", min: -1, step: 1, whole: true, hint: "keep the k likeliest tokens; 0 keeps all" },
  {
    name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01,
    hint: "drop tokens below this share of the likeliest",
  },
  { name: "seed", label: "Seed", step: 1, whole: true, hint: "the same request and seed give the same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.01, hint: "1 is off" },
  ...[
    ["frequency_penalty", "Frequency penalty", "per use of a token in the answer; 0 is off"],
    ["presence_penalty", "Presence penalty", "for any use of a token; 0 is off"],
  ].map(([name, label, hint]) => ({ name, label, min: -2, max: 2, step: 0.1, hint })),
];
export const ESSENTIAL = 4;
const N_ALTERNATIVES = 6; // of each word, where they are requested
export const DEFAULTS = { system: "", stop: "", ignore_eos: false };

/** Say what is wrong with a field's text, or nothing. */
export function fault(field, text) {
  if (text === undefined || String(text).trim() === "") return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return "not a number";
  if (field.whole && !Number.isInteger(value)) return "whole numbers only";
  if (field.min !== undefined && value < field.min) return `at least ${field.min}`;
  if (field.max !== undefined && value > field.max) return `at most ${field.max}`;
  return "";
}

/** Build the body of a chat request. `turns` are the messages so far, `prompt` one more of the user. */
export function bodyOf(settings, model, turns, prompt = null) {
  const body = { ...(model && { model }), messages: [] };
  if (settings.system?.trim()) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...turns);
  if (prompt !== null) body.messages.push({ role: "user", content: prompt });
  for (const field of FIELDS) {
    const text = settings[field.name];
    if (text !== undefined && String(text).trim() !== "" && !fault(field, text))
      body[field.name] = Number(text);
  }
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.ignore_eos) body.ignore_eos = true;
  if (settings.words) Object.assign(body, { logprobs: true, top_logprobs: N_ALTERNATIVES });
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

const KEPT_AS = "defaults";
const NOTHING = { settings: DEFAULTS, model: "" };

/** The settings that new chats and comparisons begin with; kept in this browser. */
export const play = makeStore({ ...NOTHING, ...kept(forGood, KEPT_AS, {}) });

/** Take these as the defaults of new chats and comparisons. */
export function keepDefaults({ settings, model }) {
  play.set({ settings, model });
  keep(forGood, KEPT_AS, { settings, model });
}

export const change = (name, value) =>
  keepDefaults({ ...play.get(), settings: { ...play.get().settings, [name]: value } });

export function reset() {
  play.set(NOTHING);
  keep(forGood, KEPT_AS, null);
}
