// One answer: its reasoning, its text, its tool calls, and what they took.
import { feed } from "../feed/feed.js";
import { CopyButton } from "../parts/clipboard.js";
import { duration } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { later } from "../parts/lazy.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/preact.js";
import { useEndInSight } from "../parts/scroll.js";
import { useRedraw, useStore } from "../parts/store.js";
import { isOpen } from "../request/chat.js";
import { Calls } from "./calls.js";
import { Markdown } from "./markdown.js";
import { Numbers } from "./numbers.js";

const Words = later(async () => (await import("./words.js")).Words);
const NEAR_PX = { page: 200, card: 30 };
const TAIL_CHARS = 200; // more than a line of them

/**
 * What the model says, then its numbers and `actions`. `last`: its end stays in sight. `waiting`: for what, in words.
 * `busy`: more may come after its text, such as its numbers.
 *
 * `onResult(id, result)` takes the result of a tool call that somebody types; see `Calls`. `goOn(text, tokens)` goes
 * on from another word; null where that cannot be.
 */
export function Answer({
  answer: store,
  last = false,
  busy = false,
  waiting = null,
  actions = null,
  onResult = null,
  goOn = null,
  title = null,
}) {
  const answer = useStore(store);
  const { history } = useStore(feed);
  const request = history?.requests.get(answer.requestId) ?? null;
  const { status, part, reasoning, text, tokens, calls, error } = answer;
  const [inWords, setInWords] = useState(false);
  const open = isOpen(answer);
  const words = useRef(null);
  const grew = useRef(false);
  const grows = open || busy;
  const scroller = () => (title ? words.current : document.scrollingElement);
  useEndInSight(scroller, title ? NEAR_PX.card : NEAR_PX.page, (grows || grew.current) && (title || last));
  useLayoutEffect(() => {
    grew.current = grows; // what comes with the end is drawn after it
  });
  const caretOf = (name) => (status === "streaming" && part === name ? html`<i class="caret"></i>` : null);
  const unanswered = reasoning && !text && !calls.length && !open && !error;
  return html`<article class=${`answer ${status}`} aria-busy=${String(open)}>
    <h2 class=${title ? null : "hidden"}>${title ?? "Answer"}</h2>
    ${status === "waiting" && html`<p class="waiting">${waiting ?? "waiting for the first token …"}</p>`}
    <${Pause} answer=${answer} />
    ${reasoning && html`<${Reasoning} answer=${answer} title=${title} caret=${caretOf("reasoning")} />`}
    ${unanswered && html`<p class="waiting">It ended before the answer began.</p>`}
    ${
      text &&
      html`<div class="text" ref=${words} tabindex=${title ? "0" : null} role=${title ? "region" : null}
      aria-label=${title ? `Answer of ${title}` : null}>
      <${Markdown} text=${text} growing=${open && part === "text"} caret=${caretOf("text")} /></div>`
    }
    ${
      calls.length > 0 &&
      html`<${Calls} calls=${calls} open=${open && part === "calls"} caret=${caretOf("calls")}
        onResult=${onResult} />`
    }
    ${error && html`<p class="failure" role="alert"><b>Failed.</b> ${error.message}${" "}
      ${error.code && html`<code>${error.code}</code>`}</p>`}
    <footer>
      <${Numbers} answer=${answer} request=${request} nowS=${history?.nowS} />
      <div class="actions">
        ${text && !open && html`<${CopyButton} what="Copy answer" textOf=${() => text} />`}
        ${
          tokens?.length > 0 &&
          !grows &&
          html`<button class="quiet small" aria-expanded=${String(inWords)} onClick=${() => setInWords(!inWords)}
            title="How likely each word was, and the alternatives"><${Icon} name="branch" size=${14} />Words</button>`
        }
        ${actions}
      </div>
    </footer>
    ${inWords && !grows && html`<${Words} text=${text} tokens=${tokens} title=${title} goOn=${goOn} />`}
  </article>`;
}

const WHY = {
  engine: (begun) => `The engine is restarting. This answer ${begun ? "continues" : "begins"} when it is back.`,
  network: (begun) => `The server does not answer. This answer ${begun ? "continues" : "begins"} as soon as it does.`,
};
const WAS = {
  engine: "The engine was restarted; the answer continued after",
  network: "The connection was lost; the answer continued after",
};

/** Why no text comes at present; afterwards, why there was none for a while. */
function Pause({ answer: { pause, pauses = [], text, reasoning } }) {
  useRedraw(pause ? 1000 : null);
  if (pause) {
    const seconds = Math.max(0, Math.floor((Date.now() - pause.sinceMs) / 1000));
    return html`<p class="pause"><i class="dot wait"></i>
      <span role="status">${WHY[pause.why](text || reasoning)}</span>
      <span class="muted">${seconds}\u202fs</span></p>`;
  }
  return pauses.map(
    ({ why, tookS }, i) => html`<p key=${i} class="pause over">${WAS[why]} ${duration(tookS)}.</p>`,
  );
}

/** Folded, so that nothing jumps when the answer begins. While it grows, its last words stand in its line. */
function Reasoning({ answer, title, caret }) {
  const { reasoning, reasonedS } = answer;
  const words = useRef(null);
  const tail = reasoning.slice(-TAIL_CHARS);
  useEndInSight(() => words.current, NEAR_PX.card, isOpen(answer));
  return html`<details class="reasoning">
    <summary>Reasoning${
      caret
        ? html`<span class="tail" aria-hidden="true"><span>${tail}</span></span>${caret}`
        : reasonedS > 0 && html`<span class="took">${duration(reasonedS)}</span>`
    }</summary>
    <p ref=${words} tabindex=${title ? "0" : null} role=${title ? "region" : null}
      aria-label=${title ? `Reasoning of ${title}` : null}>${reasoning}</p>
  </details>`;
}
