// An answer word by word: how likely each was, what else was likely there, and another way on from it.
import { percent } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";

/** Bounds of how likely a word was, the surest first; each has a colour. */
const SURE = [0.9, 0.5, 0.2];

const likelihood = (logprob) => Math.exp(logprob);
const shareOf = (logprob) => (likelihood(logprob) < 0.0005 ? "< 0.1\u202f%" : percent(likelihood(logprob)));
const shadeOf = (logprob) => `sure-${SURE.filter((bound) => likelihood(logprob) < bound).length}`;

/** Where each token stands in a text, as `{from, to, token}`, without those that are not in it, such as the end. */
function placesOf(text, tokens) {
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

/** The words of an answer, one of which can be chosen; `goOn(text, tokens)` goes on from another beginning of it. */
export function Words({ text, tokens, title, goOn }) {
  const [chosen, choose] = useState(null);
  const line = useRef(null);
  const places = placesOf(text, tokens);
  const here = places[chosen] ?? null;
  useEffect(() => {
    if (chosen !== null) line.current.querySelector(`[data-at="${chosen}"]`)?.focus();
  }, [chosen]);
  const onKeyDown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) choose(Math.min(places.length - 1, Math.max(0, (chosen ?? -1) + by)));
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(Number(event.target.dataset.at));
  };
  let end = 0;
  const drawn = places.flatMap(({ from, to, token }, i) => {
    const between = text.slice(end, from);
    end = to;
    return [
      between,
      // No button: those are boxes, between which lines break also before a full stop.
      html`<span key=${i} role="button" data-at=${i} class=${`word ${shadeOf(token.logprob)}`}
        aria-pressed=${String(i === chosen)} tabindex=${i === (chosen ?? 0) ? "0" : "-1"}
        title=${shareOf(token.logprob)}
        onClick=${() => choose(i)}>${text.slice(from, to)}</span>`,
    ];
  });
  return html`<section class="wordwise card" aria-label=${title ? `Words of ${title}` : "Words of this answer"}>
    <p class="hint">The stronger its colour, the less likely a word was. Choose a word to
      see the alternatives.</p>
    <div class="line" ref=${line} onKeyDown=${onKeyDown}>${drawn}${text.slice(end)}</div>
    ${here && html`<${Choices} text=${text} places=${places} at=${chosen} goOn=${goOn} />`}
  </section>`;
}

/** The likely words of a place; with `goOn`, each other one is a button. */
function Choices({ text, places, at, goOn }) {
  const { token, from } = places[at];
  const written = [token.text, token.logprob];
  const others = token.top.filter(([word]) => word && word !== token.text);
  const all = [written, ...others].sort((a, b) => b[1] - a[1]);
  const take = ([word, logprob]) => {
    const kept = places.slice(0, at).map((place) => place.token);
    goOn(text.slice(0, from) + word, [...kept, { ...token, text: word, logprob }]);
  };
  const kind = goOn ? "button" : "span";
  return html`<div class="choices" role="group" aria-label="Likely here">
    ${all.map((choice) => {
      const own = choice[0] === token.text;
      return html`<${kind} key=${choice[0]} class="small" disabled=${goOn ? own : null}
        onClick=${goOn && (() => take(choice))}
        title=${own ? "What was written" : goOn && "Continue from this word, as another version of the answer"}>
        <code>${withVisibleSpace(choice[0])}</code>
        <span class="muted">${shareOf(choice[1])}${own && ", written"}</span></${kind}>`;
    })}
  </div>`;
}

/** A token with its white space to be seen. */
const withVisibleSpace = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
