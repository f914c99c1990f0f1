// Named settings: kept in this browser, used for a conversation, exported and imported as a file.
import { saveText } from "../parts/clipboard.js";
import { Icon } from "../parts/icons.js";
import { html, useRef, useState } from "../parts/preact.js";
import { keptStore, useStore } from "../parts/store.js";
import { knownSettings, read, written } from "./portable.js";

const MOST = 100;

/** By name: `{settings, model}`. */
const presets = keptStore("presets", {});

/** Read presets as they were exported. Throws an Error that says what is wrong. */
function fromJson(text) {
  const isPreset = ([, preset]) => preset?.settings && typeof preset.settings === "object";
  const entries = Object.entries(read("presets", text) ?? {}).filter(isPreset);
  return Object.fromEntries(
    entries.map(([name, { settings, model }]) => [
      name.slice(0, 60),
      { settings: knownSettings(settings), model: typeof model === "string" ? model : "" },
    ]),
  );
}

/** `take({settings, model})` gives a preset's to the conversation. */
export function Presets({ settings, model, take }) {
  const { value: all } = useStore(presets);
  const [notice, setNotice] = useState(null);
  const [name, file] = [useRef(null), useRef(null)];
  const names = Object.keys(all).sort((a, b) => a.localeCompare(b));
  const save = (event) => {
    event.preventDefault();
    const called = name.current.value.trim();
    if (!called) return;
    if (!(called in all) && names.length >= MOST)
      setNotice(`You can have at most ${MOST} presets. Delete one first.`);
    else {
      presets.put({ ...all, [called]: { settings, model } });
      name.current.value = "";
      setNotice(`Saved as ${called}.`);
    }
  };
  const remove = (removed) => {
    const { [removed]: gone, ...others } = all;
    presets.put(others);
  };
  const bring = async () => {
    const [chosen] = file.current.files;
    file.current.value = "";
    try {
      const imported = fromJson(await chosen.text());
      const together = { ...all, ...imported };
      if (Object.keys(together).length > MOST) throw new Error(`You can have at most ${MOST} presets.`);
      presets.put(together);
      setNotice(`Imported ${Object.keys(imported).length}.`);
    } catch (error) {
      setNotice(`${chosen.name} was not imported. ${error.message}`);
    }
  };
  return html`<details class="presets"><summary>Presets</summary>
    ${names.length > 0 && html`<ul aria-label="Presets">${names.map((presetName) => html`<li key=${presetName}>
      <button type="button" class="quiet" title="Use these settings"
        onClick=${() => (take(all[presetName]), setNotice(`Using ${presetName}.`))}>${presetName}</button>
      <button type="button" class="quiet icon small" aria-label=${`Delete the preset ${presetName}`} title="Delete"
        onClick=${() => remove(presetName)}><${Icon} name="trash" size=${14} /></button></li>`)}</ul>`}
    <form onSubmit=${save}><input ref=${name} aria-label="Name of the preset" placeholder="Name" maxlength="60" />
      <button>Save these</button></form>
    ${notice && html`<p class="hint" role="status">${notice}</p>`}
    <div class="portable">
      <input ref=${file} type="file" accept="application/json,.json" hidden aria-label="Presets to import"
        onChange=${bring} />
      <button type="button" class="quiet small" onClick=${() => file.current.click()}>
        <${Icon} name="upload" size=${14} />Import</button>
      <button type="button" class="quiet small" disabled=${!names.length}
        onClick=${() => saveText(written("presets", all), "presets.json")}>
        <${Icon} name="download" size=${14} />Export</button>
    </div>
  </details>`;
}
