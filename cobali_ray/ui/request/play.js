// The settings that new chats and comparisons begin with; kept in this browser. No drawing.
import { forGood, keep, kept, makeStore } from "../parts/store.js";
import { isOpen } from "./chat.js";
import { DEFAULTS } from "./params.js";

const NAME = "defaults";
const NOTHING = { settings: DEFAULTS, model: "" };

export const play = makeStore({ ...NOTHING, ...kept(forGood, NAME, {}) });

/** Take these as the defaults of new chats and comparisons. */
export function keepDefaults({ settings, model }) {
  play.set({ settings, model });
  keep(forGood, NAME, { settings, model });
}

/** Change one setting and keep it. */
export const change = (name, value) =>
  keepDefaults({ ...play.get(), settings: { ...play.get().settings, [name]: value } });

/** Forget all settings. */
export function reset() {
  play.set(NOTHING);
  keep(forGood, NAME, null);
}

/** Say whether any answer of a run is still open. */
export const isRunning = (run) => run.answers.some((answer) => isOpen(answer.get()));
