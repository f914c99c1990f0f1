// What is compared: streams, models or settings.
import { Icon } from "../parts/icons.js";
import { html } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { models } from "../request/models.js";
import { fault, play } from "../request/params.js";
import {
  CHANGEABLE,
  MOST_STREAMS,
  choose,
  comparison,
  differ,
  keepStreams,
  kindOf,
  pairOf,
} from "./comparestate.js";

const KINDS = { streams: "Streams", models: "Models", settings: "Settings" };
const FORMS = { streams: Streams, models: Models, settings: Changes };

/** The choice, and what belongs to it. */
export function Setup({ state }) {
  const { all } = useStore(models);
  const kind = kindOf(state);
  const Form = FORMS[kind];
  return html`<section class="setup card" aria-label="What to compare">
    <div>
      <span class="segments" role="group" aria-label="What to compare">${Object.entries(KINDS).map(
        ([name, word]) => html`<button key=${name} type="button" class="segment"
          aria-pressed=${String(name === kind)} disabled=${name === "models" && all.length < 2}
          onClick=${() => choose({ kind: name })}>${word}</button>`,
      )}</span>
      ${all.length === 1 && html`<small>Comparing models needs two models; this server has one.</small>`}
    </div>
    <${Form} state=${state} />
  </section>`;
}

function Streams({ state: { streams } }) {
  return html`<p><label class="streams">
    <input type="number" min="1" max=${MOST_STREAMS} value=${streams} onBlur=${keepStreams}
      onInput=${(event) => comparison.set({ streams: event.target.value })} /> streams</label>
    <small>of one request, each with its own slot and its own random numbers.</small></p>`;
}

/** Whoever chooses the other side's model swaps the two. */
function Models({ state }) {
  const { all } = useStore(models);
  const pair = pairOf(state);
  const pick = (side, id) =>
    choose({ pair: id === pair[1 - side] ? pair.toReversed() : pair.with(side, id) });
  return html`<div class="pair">${["Left", "Right"].map(
    (word, side) => html`<label key=${word}><span>${word}</span>
      <select value=${pair[side]} onChange=${(event) => pick(side, event.target.value)}>
        ${all.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
      </select></label>`,
  )}</div>`;
}

/** The settings in which the right side differs; the left has those of the page. */
function Changes({ state }) {
  const { changes } = state;
  const { settings } = useStore(play);
  const others = CHANGEABLE.filter(({ name }) => !(name in changes));
  const add = (event) => {
    differ(event.target.value, "");
    event.target.value = "";
  };
  return html`<div class="changes">
    <small>A has the settings of this page. B differs in:</small>
    ${CHANGEABLE.filter(({ name }) => name in changes).map(
      (field) => html`<${Change} key=${field.name} field=${field} value=${changes[field.name]}
        was=${settings[field.name]} />`,
    )}
    <select class="add" aria-label="Let B differ in one more setting" value="" onChange=${add}>
      <option value="">Add a setting …</option>
      ${others.map(({ name, label }) => html`<option key=${name} value=${name}>${label}</option>`)}
    </select>
    ${!Object.keys(changes).length && html`<small>Nothing yet, so both get the same request.</small>`}
  </div>`;
}

function Change({ field, value, was }) {
  const { name, label, step, min, max } = field;
  const onInput = (event) => differ(name, event.target.value);
  const wrong = name === "system" ? "" : fault(field, value);
  const instead = String(was ?? "").trim() || (name === "system" ? "none" : "default");
  return html`<div class=${`change ${name}`}>
    <label><span>${label}</span>
      ${
        name === "system"
          ? html`<textarea rows="2" value=${value} placeholder="none" onInput=${onInput}></textarea>`
          : html`<input type="number" inputmode="decimal" min=${min} max=${max} step=${step} value=${value}
              placeholder="default" aria-invalid=${wrong ? "true" : null} onInput=${onInput} />`
      }
    </label>
    <button type="button" class="quiet icon" aria-label=${`${label}: as in A`} title="As in A"
      onClick=${() => differ(name, null)}><${Icon} name="close" /></button>
    <small class=${wrong ? "wrong" : ""}>${wrong || `A: ${instead.slice(0, 60)}`}</small>
  </div>`;
}
