// A conversation that fills the model's context: its oldest messages are dropped or summed up, as the user chooses.
import { count, percent } from "../parts/format.js";
import { html } from "../parts/preact.js";
import { makeStore, useStore } from "../parts/store.js";
import { ask } from "../request/chat.js";
import { laterStart, nextTokens } from "../request/context.js";
import { apiMessages, messageOf, pathOf, pathTo, readPart, withChange } from "../request/conversations.js";
import { modelOf, models } from "../request/models.js";
import { bodyOf } from "../request/params.js";
import { change, hold, library, release } from "./library.js";
import { isRunning, regenerate } from "./talk.js";

const FULL_SHARE = 0.75; // from here on the two ways out are offered
const SUMMARY_TOKENS = 400;
const SUMMARY_PROMPT =
  "Summarise our conversation so far, so that it can go on from the summary alone: what I want, what was " +
  "decided, names, numbers and open questions. Write nothing but the summary.";
export const TOO_LONG = "context_length_exceeded";

/** Summaries that are being written, and why one was not, by conversation: `{answer, stop}` or `{trouble}`. */
const summaries = makeStore({ by: {} });

const note = (id, state) => summaries.set({ by: { ...summaries.get().by, [id]: state } });

/** How many tokens a conversation's model reads at most; undefined where nobody knows. */
const mostOf = ({ model }) => models.get().all.find(({ id }) => id === modelOf(model))?.max_model_len;

/** Have the model begin to read a conversation later. */
function dropOldest(conversation, summary = null) {
  const start = laterStart(pathOf(conversation), mostOf(conversation));
  begin(conversation.id, start.id, { summary });
}

function begin(id, message, start) {
  change(id, (was) => withChange(was, message, { start }));
  const { held, id: current } = library.get();
  if (id !== current) return;
  const last = messageOf(held[id], held[id].head);
  if (last.error?.code === TOO_LONG) regenerate(last);
}

/** Have the model read all of a branch again. */
const readAll = ({ id }, message) => change(id, (was) => withChange(was, message.id, { start: null }));

/** Have the model sum up what it will no longer read, and go on from there. */
async function summarise(conversation) {
  const { id, settings, model } = conversation;
  const path = pathOf(conversation);
  const start = laterStart(path, mostOf(conversation));
  const turns = apiMessages(pathTo(conversation, start.parent));
  const body = bodyOf({ system: settings.system }, modelOf(model), turns, SUMMARY_PROMPT);
  const run = ask({ ...body, max_tokens: SUMMARY_TOKENS });
  const [answer] = run.answers;
  note(id, { answer, stop: run.stop });
  hold(id, run.stop); // it may be left meanwhile
  await run.done;
  release(id, run.stop);
  const { status, text, error } = answer.get();
  if (status === "done" && text.trim()) begin(id, start.id, { summary: text.trim() });
  const trouble = status === "stopped" ? null : (error?.message ?? (text.trim() ? null : "The summary was empty."));
  note(id, trouble && { trouble });
}

/** How full the context is; once it is nearly full, what to do. */
export function Context({ conversation, draft, busy }) {
  useStore(models);
  const working = useStore(summaries).by[conversation.id];
  const nMost = mostOf(conversation);
  const n = nextTokens(pathOf(conversation), draft);
  if (!nMost || !n) return null;
  const share = Math.min(1, n / nMost);
  const full = share >= FULL_SHARE;
  return html`<div class=${`context ${full ? "full" : ""}`}>
    <span class="gauge" role="meter" aria-label="Context" aria-valuemin="0" aria-valuemax=${nMost}
      aria-valuenow=${Math.min(n, nMost)} aria-valuetext=${`about ${count(n)} of ${count(nMost)} tokens`}
      title="How much of its context the model reads with the next message">
      <svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
        <rect class="all" width="100" height="4" /><rect class="used" width=${100 * share} height="4" /></svg>
      <span>${full ? `Context ${percent(share)} full` : `≈ ${count(n)} of ${count(nMost)} tokens`}</span></span>
    ${(full || working) && html`<${Shorten} conversation=${conversation} busy=${busy} />`}
  </div>`;
}

export function Shorten({ conversation, busy }) {
  const working = useStore(summaries).by[conversation.id];
  const none = !laterStart(pathOf(conversation), mostOf(conversation) ?? Infinity);
  if (working?.stop)
    return html`<span class="muted" role="status">Summarising …</span>
      <button type="button" class="quiet small" onClick=${working.stop}>Stop summarising</button>`;
  if (none) return html`<span class="muted">There is nothing older to drop.</span>`;
  const doing = (work) => () => isRunning() || work(conversation);
  return html`<button type="button" class="quiet small" disabled=${busy} onClick=${doing(dropOldest)}
      title="The model no longer reads the oldest messages; they stay here">Drop the oldest</button>
    <button type="button" class="quiet small" disabled=${busy} onClick=${doing(summarise)}
      title="The model reads a summary in place of the oldest messages; they stay here">Summarise and go on</button>
    ${working?.trouble && html`<span class="wrong" role="alert">Not summarised: ${working.trouble}</span>`}`;
}

/** Where the model begins to read, and the summary of what came before. */
export function Start({ conversation, message, busy }) {
  const { summary } = message.start;
  if (readPart(pathOf(conversation))[0] !== message) return null;
  return html`<div class="start">
    <span class="hint">The model reads from here on${summary ? ", and a summary of what came before" : ""}.</span>
    <button class="quiet small" disabled=${busy} onClick=${() => readAll(conversation, message)}>Read all</button>
    ${summary && html`<details><summary>Summary</summary><p>${summary}</p></details>`}
  </div>`;
}
