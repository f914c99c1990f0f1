// An answer word by word: how likely each was, what else was likely there, and another way on from it.
import { percent } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { branchWith } from "./talk.js";

/** Bounds of how likely a word was, the surest first; each has a colour. */
const SURE = [0.9, 0.5, 0.2];

const likelihood = (logprob) => Math.exp(logprob);
const shareOf = (logprob) => (likelihood(logprob) < 0.0005 ? "< 0.1\u202f%" : percent(likelihood(logprob)));
const shadeOf = (logprob) => `sure-${SURE.filter((bound) => likelihood(logprob) < bound).length}`;

/** Where each token stands in a text, as `{from, to, token}`, without those that are not in it, such as the end. */
export function placesOf(text, tokens) {
  const places = [];
  let at = 0;
  for (const token of tokens) {
    const from = token.text ? text.indexOf(token.text, at) : -1;
    if (from < 0) continue;
    at = from + token.text.length;
    places.push({ from, to: at, token });
  }
  return places;
}

/** The words of an answer, one of which can be chosen. `busy`: nothing can be asked for now. */
export function Words({ message, busy }) {
  const { text, tokens } = message;
  const [chosen, choose] = useState(null);
  const line = useRef(null);
  const places = placesOf(text, tokens);
  const here = places[chosen] ?? null;
  useEffect(() => {
    if (chosen !== null) line.current.querySelector(`[data-at="${chosen}"]`)?.focus();
  }, [chosen]);
  const onKeyDown = ({ key }) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (by) choose(Math.min(places.length - 1, Math.max(0, (chosen ?? -1) + by)));
  };
  let end = 0;
  const drawn = places.flatMap(({ from, to, token }, i) => {
    const between = text.slice(end, from);
    end = to;
    return [
      between,
      html`<button key=${i} data-at=${i} class=${`word ${shadeOf(token.logprob)}`}
        aria-pressed=${String(i === chosen)} tabindex=${i === (chosen ?? 0) ? "0" : "-1"}
        title=${shareOf(token.logprob)}
        onClick=${() => choose(i)}>${text.slice(from, to)}</button>`,
    ];
  });
  return html`<section class="wordwise card" aria-label="Words of this answer">
    <p class="hint">The darker a word, the less likely it was. Choose one to see what else was likely there.</p>
    <div class="line" ref=${line} onKeyDown=${onKeyDown}>${drawn}${text.slice(end)}</div>
    ${here && html`<${Choices} message=${message} place=${here} at=${chosen} busy=${busy} />`}
  </section>`;
}

function Choices({ message, place, at, busy }) {
  const { token } = place;
  const written = [token.text, token.logprob];
  const others = token.top.filter(([text]) => text && text !== token.text);
  const all = [written, ...others].sort((a, b) => b[1] - a[1]);
  const goOn = (text) => {
    const kept = placesOf(message.text, message.tokens).slice(0, at);
    const tokens = [...kept.map((one) => one.token), { ...token, text, logprob: new Map(all).get(text) }];
    branchWith(message, message.text.slice(0, place.from) + text, tokens);
  };
  return html`<div class="choices" role="group" aria-label="Likely here">
    ${all.map(([text, logprob]) => {
      const own = text === token.text;
      return html`<button key=${text} class="small" disabled=${own || busy} onClick=${() => goOn(text)}
        title=${own ? "What was written" : "Go on from this word, as another version of the answer"}>
        <code>${shown(text)}</code>
        <span class="muted">${shareOf(logprob)}${own && ", written"}</span></button>`;
    })}
  </div>`;
}

/** A token with its white space to be seen. */
const shown = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
