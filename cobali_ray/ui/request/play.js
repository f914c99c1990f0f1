// The settings that new chats and comparisons begin with; kept in this browser. No drawing.
import { forGood, keep, kept, makeStore } from "../parts/store.js";
import { DEFAULTS } from "./params.js";

const NAME = "defaults";
const NOTHING = { settings: DEFAULTS, model: "" };

export const play = makeStore({ ...NOTHING, ...kept(forGood, NAME, {}) });

/** Take these as the defaults of new chats and comparisons. */
export function keepDefaults({ settings, model }) {
  play.set({ settings, model });
  keep(forGood, NAME, { settings, model });
}

export const change = (name, value) =>
  keepDefaults({ ...play.get(), settings: { ...play.get().settings, [name]: value } });

export function reset() {
  play.set(NOTHING);
  keep(forGood, NAME, null);
}
