// The form beside the conversation: model, system prompt, sampling.
import { count } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { html } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { loadModels, modelOf, models } from "./models.js";
import { ESSENTIAL, FIELDS, change, fault, play, reset } from "./params.js";

export function PlaySettings() {
  const { settings, model } = useStore(play);
  return html`<${Settings} settings=${settings} model=${model} change=${change} reset=${reset}
    choose=${(name) => play.set({ model: name })} />`;
}

/** Everything that a request says beside its messages; `children` stand at the end. Without `onClose` it folds. */
export function Settings({ settings, model, change, choose, reset, onClose, children }) {
  const form = html`<div class="form"><${Model} chosen=${model} choose=${choose} />
    <label class="field"><span>System prompt</span>
      <textarea rows="3" value=${settings.system} placeholder="none"
        onInput=${(event) => change("system", event.target.value)}></textarea></label>
    <${Fields} fields=${FIELDS.slice(0, ESSENTIAL)} settings=${settings} change=${change} />
    <details>
      <summary>More</summary>
      <${Fields} fields=${FIELDS.slice(ESSENTIAL)} settings=${settings} change=${change} />
      <label class="field"><span>Stop strings, one per line</span>
        <textarea rows="2" value=${settings.stop}
          onInput=${(event) => change("stop", event.target.value)}></textarea></label>
      <label class="check"><input type="checkbox" checked=${settings.ignore_eos}
        onChange=${(event) => change("ignore_eos", event.target.checked)} /> Never end before max tokens</label>
    </details>
    <label class="check"><input type="checkbox" checked=${Boolean(settings.words)}
      onChange=${(event) => change("words", event.target.checked)} /> Alternatives for each word</label>
    ${children}
    <button class="quiet" onClick=${reset}>Reset</button>
    <p class="hint">Fields left empty take the server's defaults.</p></div>`;
  return html`<aside class="settings card" aria-label="Settings">${
    onClose
      ? html`<header><h2>Settings</h2>
          <button class="quiet icon" aria-label="Close settings" title="Close" onClick=${onClose}>
            <${Icon} name="close" /></button></header>${form}`
      : html`<details open=${innerWidth > 900}><summary><h2>Settings</h2></summary>${form}</details>`
  }</aside>`;
}

function Model({ chosen, choose }) {
  const { all, trouble } = useStore(models);
  if (trouble?.status === 401) return html`<p class="hint field">Enter a valid key to see the models.</p>`;
  if (trouble) {
    return html`<p class="failure field" role="alert">${trouble.message}
      ${" "}<button class="quiet" onClick=${loadModels}>Try again</button></p>`;
  }
  const model = modelOf(chosen);
  const entry = all.find(({ id }) => id === model);
  return html`<label class="field"><span>Model</span>
    <select value=${model} onChange=${(event) => choose(event.target.value)}>
      ${all.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
    </select>
    ${entry && html`<small>${aboutOf(entry)}</small>`}</label>`;
}

/** What is known of a model: of one that has not been loaded yet, little. */
function aboutOf({ description, max_model_len: most, status }) {
  if (status.value === "unloaded") return "Not loaded yet: loads with the first message.";
  if (most === undefined) return status.detail;
  return `${description && `${description}, `}${count(most)} tokens at most`;
}

function Fields({ fields, settings, change }) {
  return html`<div class="pairs">
    ${fields.map(
      (field) => html`<${Field} key=${field.name} field=${field} settings=${settings} change=${change} />`,
    )}
  </div>`;
}

function Field({ field, settings, change }) {
  const { name, label, hint, min, max, step } = field;
  const value = settings[name] ?? "";
  const wrong = fault(field, value);
  return html`<label class="field" title=${hint}><span>${label}</span>
    <input type="number" inputmode="decimal" name=${name} min=${min} max=${max} step=${step} value=${value}
      placeholder="default" aria-invalid=${wrong ? "true" : null} aria-describedby=${`${name}-hint`}
      onInput=${(event) => change(name, event.target.value)} />
    <small id=${`${name}-hint`} class=${wrong ? "wrong" : ""}>${wrong ? `${wrong}; not sent` : hint}</small></label>`;
}
