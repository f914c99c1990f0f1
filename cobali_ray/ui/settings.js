// The form beside the conversation: model, system prompt, sampling.
import { ESSENTIAL, FIELDS, fault } from "./params.js";
import { change, loadModels, play, reset } from "./play.js";
import { html } from "./preact.js";

/** Everything that a request says beside its messages. */
export function Settings({ state }) {
  const { settings } = state;
  return html`<aside class="settings card" aria-label="Settings">
    <details open=${innerWidth > 900}>
      <summary><h2>Settings</h2></summary>
      <${Model} state=${state} />
      <label class="field"><span>System prompt</span>
        <textarea rows="3" value=${settings.system} placeholder="none"
          onInput=${(event) => change("system", event.target.value)}></textarea></label>
      <${Fields} fields=${FIELDS.slice(0, ESSENTIAL)} settings=${settings} />
      <details>
        <summary>More</summary>
        <${Fields} fields=${FIELDS.slice(ESSENTIAL)} settings=${settings} />
        <label class="field"><span>Stop strings, one per line</span>
          <textarea rows="2" value=${settings.stop}
            onInput=${(event) => change("stop", event.target.value)}></textarea></label>
        <label class="check"><input type="checkbox" checked=${settings.ignore_eos}
          onChange=${(event) => change("ignore_eos", event.target.checked)} /> never end before max tokens</label>
      </details>
      <button class="quiet" onClick=${reset}>Reset</button>
      <p class="hint">Empty fields are not sent: the server's defaults hold.</p>
    </details>
  </aside>`;
}

function Model({ state: { models, model, trouble } }) {
  if (trouble) {
    return html`<p class="failure" role="alert">${trouble.message}
      ${" "}<button class="quiet" onClick=${loadModels}>Try again</button></p>`;
  }
  const found = models.find(({ id }) => id === model);
  return html`<label class="field"><span>Model</span>
    <select value=${model} onChange=${(event) => play.set({ model: event.target.value })}>
      ${models.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
    </select>
    ${
      found &&
      html`<small>${found.description && `${found.description}, `}
      ${found.max_model_len.toLocaleString("en")} tokens at most</small>`
    }</label>`;
}

function Fields({ fields, settings }) {
  return html`<div class="pairs">
    ${fields.map((field) => html`<${Field} key=${field.name} field=${field} settings=${settings} />`)}
  </div>`;
}

function Field({ field, settings }) {
  const { name, label, hint, min, max, step } = field;
  const value = settings[name] ?? "";
  const wrong = fault(field, value);
  return html`<label class="field" title=${hint}><span>${label}</span>
    <input type="number" inputmode="decimal" name=${name} min=${min} max=${max} step=${step} value=${value}
      placeholder="default" aria-invalid=${wrong ? "true" : null} aria-describedby=${`${name}-hint`}
      onInput=${(event) => change(name, event.target.value)} />
    <small id=${`${name}-hint`} class=${wrong ? "wrong" : ""}>${wrong || hint}</small></label>`;
}
