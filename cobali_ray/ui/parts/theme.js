// Light, dark, or as the system has it; and the colours of it for canvases.
import { forGood, keep, kept, makeStore } from "./store.js";

const ORDER = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const probe = document.createElement("span");

export const theme = makeStore({ choice: kept(forGood, "theme", "auto"), version: 0 });

/** Follow the choice and the system, and tell canvases when to paint anew. */
export function followTheme() {
  document.body.append(probe);
  probe.hidden = true;
  apply(theme.get().choice);
  system.addEventListener("change", () => apply(theme.get().choice));
}

/** Take the next of the three. */
export function nextTheme() {
  const choice = ORDER[(ORDER.indexOf(theme.get().choice) + 1) % ORDER.length];
  keep(forGood, "theme", choice === "auto" ? null : choice);
  apply(choice);
}

function apply(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  colours.clear();
  theme.set({ choice, version: theme.get().version + 1 });
}

const colours = new Map();

/** Return a colour of the style sheet by its name, as canvases want it. */
export function colour(name) {
  if (!colours.has(name)) {
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}
