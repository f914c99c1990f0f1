// The comparison: one prompt to several streams, two models or two settings, side by side.
import { Answer } from "../answer/answer.js";
import { Empty } from "../answer/empty.js";
import { feed } from "../feed/feed.js";
import { EngineInUse } from "../feed/inuse.js";
import { CopyButton, saveText } from "../parts/clipboard.js";
import { toMessage } from "../parts/focus.js";
import { count, duration, rate, some } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { later } from "../parts/lazy.js";
import { html, useEffect, useState } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { partOf } from "../plots/axis.js";
import { columnsOf } from "../plots/columns.js";
import { TokenPlot } from "../plots/tickplots.js";
import { isOpen, tokensOf } from "../request/chat.js";
import { Composer } from "../request/composer.js";
import { models } from "../request/models.js";
import { play } from "../request/params.js";
import { PlaySettings } from "../request/settings.js";
import { Setup } from "./comparesetup.js";
import { again, choose, clear, compare, comparison, currentBodies } from "./comparestate.js";
import { firstModel, kindOf, openRuns, stop } from "./comparestate.js";
import { LEAD, MEASURES, asMarkdown, asObject, bestOf, formatted, numbersOf, wordOf } from "./measures.js";

const TICKS = 90;
const Difference = later(async () => (await import("./difference.js")).Difference);
const EMPTY = {
  streams: [
    "Send one prompt to several streams",
    "All of them share the engine's ticks: watch the bars grow by one decode token per stream while none " +
      "of them waits for another.",
  ],
  models: ["Ask two models the same question", "Both answer at once, with their answers and numbers side by side."],
  settings: [
    "Try two sets of settings",
    "A has the settings of this page, B differs in some. Both answer at once, and you see the effect.",
  ],
};

export function CompareView() {
  const state = useStore(comparison);
  const { model } = useStore(play);
  useStore(models);
  const { compared, draft } = state;
  const running = openRuns(state).length > 0;
  const [title, text] = EMPTY[kindOf(state)];
  const [first] = compared?.sides ?? [];
  return html`<div class="play">
    <${EngineInUse} model=${first?.body.model ?? firstModel()} revision=${compared}
      request=${running ? first.answer.get().xRequestId : null} />
    <section class="talk" aria-label="Comparison">
      <${Setup} state=${state} />
      ${
        compared
          ? html`<${Compared} compared=${compared} running=${running} />`
          : html`<${Empty} title=${title} text=${text} chosen=${model} send=${compare} />`
      }
      <${Composer} kind="compare" draft=${draft} placeholder="One prompt for all sides" running=${running}
        nothing=${!compared} onDraft=${(written) => choose({ draft: written })}
        onSend=${() => compare(comparison.get().draft)} onStop=${stop}
        bodies=${currentBodies} onClear=${clear} />
    </section>
    <${PlaySettings} />
  </div>`;
}

/** A card per answer, the ticks of that time, and in the end what the answers took and how they differ. */
function Compared({ compared, running }) {
  const [, redraw] = useState(0);
  const { history } = useStore(feed);
  useEffect(() => {
    const ends = compared.sides.map(({ answer }) => answer.watch(() => redraw((n) => n + 1)));
    return () => ends.forEach((end) => end());
  }, [compared]);
  const sides = compared.sides.map((side) => {
    const answer = side.answer.get();
    return { ...side, answer, request: history?.requests.get(answer.requestId) ?? null };
  });
  return html`<div class="compared">
    <div class="asked">${compared.prompt}</div>
    <${Together} sides=${sides} running=${running} />
    <${Meanwhile} kind=${compared.kind} />
    <div class=${`grid ${sides.length === 2 ? "two" : ""}`}>${compared.sides.map(
      ({ answer, name }) => html`<${Answer} key=${answer} answer=${answer} title=${name} />`,
    )}</div>
    ${!running && html`<${Ended} key=${compared} compared=${compared} sides=${sides} />`}
  </div>`;
}

function Together({ sides, running }) {
  const answers = sides.map(({ answer }) => answer);
  const [kind, word] = stateOf(answers);
  const tokens = sides.reduce((sum, { answer, request }) => sum + tokensOf(answer, request), 0);
  const served = answers.every(({ timings }) => timings);
  const seconds = served ? Math.max(...answers.map(({ timings }) => timings.e2e_s)) : seenS(answers);
  return html`<p class="together">
    <span class=${`badge ${kind}`}>${word}</span>
    <b>${seconds > 0 ? rate(tokens / seconds, "tok/s") : "–"}</b> together ·${" "}
    ${count(tokens)} tokens in ${duration(seconds)}${!served && ", by the page's clock"}
    <span class="grow"></span>
    <button type="button" disabled=${running}
      onClick=${(event) => (again(), toMessage(event))}><${Icon} name="retry" />Run again</button>
  </p>`;
}

/** From sending to what came last, as this page saw it. */
function seenS(answers) {
  const firstS = Math.min(...answers.map(({ sentS }) => sentS));
  return Math.max(...answers.map(({ lastS, sentS }) => lastS ?? sentS)) - firstS;
}

function stateOf(answers) {
  const open = answers.filter(isOpen).length;
  const failed = answers.filter(({ status }) => status === "failed").length;
  if (open) return ["wait", `${open} of ${answers.length} running`];
  if (failed) return ["bad", `${failed} of ${answers.length} failed`];
  return ["good", `${some(answers.length, "answer")} ended`];
}

function Meanwhile({ kind }) {
  const { history, status, engines } = useStore(feed);
  if (!history) return null;
  const to = Math.max(history.lastId, TICKS - 1);
  const from = to - TICKS + 1;
  const [ticks, part] = [history.between(from, to), partOf(from, to)];
  const { engine_id: id, model } = history.engine;
  const [name, every] =
    engines.length > 1 || kind === "models"
      ? [`engine ${id} (${model})`, "Every stream on it"]
      : ["the engine", "Every stream"];
  return html`<section class="card meanwhile" aria-label="The engine's last ticks">
    <${TokenPlot} ticks=${ticks} part=${part} columns=${columnsOf(ticks, part.axis, part.lo, part.hi, TICKS)}
      history=${history} budget=${history.engine.token_budget} height=${104} />
    <p class="muted"><i class="swatch decode"></i>decode and <i class="swatch prefill"></i>prefill tokens of
      the last ${TICKS} ticks of ${name}.
      ${status === "live" ? ` ${every} adds one decode token to each.` : " The live feed is interrupted."}
      ${" "}<a href="#ticks">See everything</a></p>
  </section>`;
}

/** Numbers, difference and exports, once all answers have ended. */
function Ended({ compared, sides }) {
  const [withDifference, setWithDifference] = useState(sides.length === 2);
  const save = () => saveText(JSON.stringify(asObject(compared, sides), null, 2), "comparison.json");
  return html`<${NumbersTable} sides=${sides} />
    <p class="afterwards">
      ${
        sides.length > 1 &&
        html`<button type="button" class="segment" aria-pressed=${String(withDifference)}
          onClick=${() => setWithDifference(!withDifference)}>Show the difference</button>`
      }
      <span class="grow"></span>
      <${CopyButton} what="Copy as Markdown" textOf=${() => asMarkdown(compared, sides)} />
      <button type="button" class="quiet small" onClick=${save}>
        <${Icon} name="download" size=${14} />Download JSON</button>
    </p>
    ${withDifference && html`<${Difference} sides=${sides} />`}`;
}

/** A row per measure, a column per side; `sides` are `{name, answer, request}`, and have ended. */
function NumbersTable({ sides }) {
  const all = sides.map(({ answer, request }) => numbersOf(answer, request));
  const partly = sides.filter((_, i) => all[i].from !== "server").map(({ name }) => name);
  return html`<section class="card measures" aria-label="Numbers">
    <div class="scroller" tabindex="0" role="region" aria-label="Table of numbers">
      <table class=${`table ${sides.length === 2 ? "two" : ""}`}>
        <thead><tr><th scope="col"><span class="hidden">Measure</span></th>
          ${sides.map(({ name }) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${MEASURES.map(
          (measure) => html`<${Row} key=${measure.name} measure=${measure}
            values=${all.map(({ numbers }) => numbers[measure.name] ?? null)} />`,
        )}</tbody>
      </table>
    </div>
    <p class="hint">Measured by the server. All sides ran at the same time; each is faster when it runs alone.
      A number is marked where it leads by ${Math.round(LEAD * 100)} % or more.
      ${
        partly.length > 0 &&
        html` Did not end by itself: ${partly.join(", ")}. Those numbers are from the engine's ticks.`
      }</p>
  </section>`;
}

function Row({ measure, values }) {
  const best = bestOf(measure, values);
  return html`<tr><th scope="row" title=${measure.hint}>${measure.label}</th>
    ${values.map(
      (value, i) => html`<td key=${i}>${formatted(measure, value)}
        ${i === best && html`${" "}<span class="badge good">${wordOf(values.length)}</span>`}</td>`,
    )}</tr>`;
}
