// The menu of models: the state of each, loading and unloading it, and downloads. Loaded when it is first opened.
import { call } from "../parts/api.js";
import { CopyButton } from "../parts/clipboard.js";
import { bytes, count, percent, some } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/preact.js";
import { eventsOf } from "../parts/sse.js";
import { useStore } from "../parts/store.js";
import { loadModels, models } from "../request/models.js";

const EVERY_MS = 3000;

const STOPPED = "Stopped. The downloaded part is kept; get the model again to continue.";

const STATES = {
  loaded: ["good", "loaded"],
  loading: ["wait", "loading"],
  draining: ["wait", "finishing its requests"],
  stalled: ["bad", "does not answer"],
  unloaded: ["plain", "not loaded: loads with the first request"],
  failed: ["bad", "could not be loaded"],
};

const BEGINS = {
  anywhere: "reuses what it has read before",
  "at states": "reuses what it has read before, from saved states",
  never: "reads every prompt from its beginning",
};
const TIERS = { slot: "slots", copy: "other slots", host: "host memory", disk: "disk" };

/** What a model can save itself, in words. */
function savingsOf({ begins, tiers, state_bytes: state, drafts }) {
  const where = tiers.map((tier) => TIERS[tier] ?? tier).join(", ");
  const size = state ? ` of ${bytes(state)}` : "";
  return `${BEGINS[begins] ?? begins}${size}${where && ` (${where})`}${drafts ? "; guesses tokens ahead" : ""}`;
}

/** What the menu holds, while it is open. */
export function ModelMenu() {
  const { all, trouble } = useStore(models);
  const [states, setStates] = useState([]);
  useEffect(() => {
    const look = () => {
      loadModels();
      call("health").then(async (answer) => setStates((await answer.json()).engines), () => {});
    };
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const devicesOf = ({ status }) =>
    states
      .flatMap(({ engine_id: id, devices = [] }) => (id in (status.engines ?? {}) ? devices : []))
      .filter(({ there }) => there);
  const served = Object.values(Object.groupBy(all, ({ root, parent, id }) => (parent === null ? root : id)));
  return html`<h2>Models</h2>
    ${trouble && html`<p class="wrong" role="alert">${trouble.message}</p>`}
    <ul class="models" aria-label="Models">${served.map(
      ([model, ...aliases]) => html`<${Model} key=${model.id} model=${model} devices=${devicesOf(model)}
        names=${aliases.map(({ id }) => id)} />`,
    )}</ul>
    <${Downloads} />`;
}

function Model({ model, devices, names }) {
  const { id, parent, status, description, size_bytes: size, max_model_len: most, reuse } = model;
  const [moving, move] = useState(""); // load or unload, while that is under way
  const [fault, setFault] = useState("");
  const [kind, word] = STATES[status.value] ?? ["plain", status.value];
  const go = async (what) => {
    if (moving) return;
    setFault("");
    move(what);
    try {
      await call(`v1/models/${what}`, { body: { model: id } });
    } catch (error) {
      setFault(error.message);
    }
    await loadModels();
    move("");
  };
  const engines = Object.keys(status.engines ?? {}).length;
  const facts = [
    size && bytes(size),
    most && `${count(most)} tokens at most`,
    engines > 1 && `${engines} engines`,
    devices.length > 0 && `on ${[...new Set(devices.map(({ name }) => name))].join(", ")}`,
    names.length > 0 && `also ${names.join(", ")}`,
    parent && `an adapter of ${parent}`,
  ].filter(Boolean);
  const what = status.value === "loaded" ? "unload" : "load";
  return html`<li>
    <div class="grow">
      <b>${id}</b>
      <small class="state"><i class=${`dot ${moving ? "wait" : kind}`}></i>
        ${moving ? `${moving}ing …` : word}</small>
      ${facts.length > 0 && html`<small>${facts.join(" · ")}</small>`}
      ${description && html`<small>${description}</small>`}
      ${reuse && html`<small>${savingsOf(reuse)}</small>`}
      ${status.detail && html`<small class=${status.value === "failed" && "wrong"}>${status.detail}</small>`}
      ${fault && html`<small class="wrong" role="alert">${fault}</small>`}
    </div>
    ${
      !parent &&
      ["loaded", "unloaded", "failed"].includes(status.value) &&
      html`<button class="small" aria-disabled=${String(moving !== "")} onClick=${() => go(what)}
        aria-label=${`${what === "load" ? "Load" : "Unload"} ${id}`}>${what === "load" ? "Load" : "Unload"}</button>`
    }
  </li>`;
}

/** The models on the server's disk, and a form to get another; nothing where server or key do not allow that. */
function Downloads() {
  const [{ allowed, data, free_bytes: free }, setDisk] = useState({ allowed: false });
  const [step, setStep] = useState(null);
  const [result, setResult] = useState(null);
  const [field, leave] = [useRef(null), useRef(null)];
  const look = () => call("v1/downloads").then(async (answer) => setDisk(await answer.json()), () => {});
  useEffect(() => {
    look();
    return () => leave.current?.abort(); // the next one goes on from there
  }, []);
  if (!allowed) return null;
  const get = async (event) => {
    event.preventDefault();
    const model = field.current.value.trim();
    leave.current = new AbortController();
    const { signal } = leave.current;
    setResult(null);
    setStep({ step: "asking the Hub", share: 0 });
    try {
      for await (const event of eventsOf(await call("v1/downloads", { body: { model }, signal }))) {
        const progress = JSON.parse(event.data);
        if (progress.error) throw new Error(progress.error.message);
        if (progress.model) setResult({ model: progress.model });
        else setStep(progress);
      }
    } catch (error) {
      setResult({ wrong: error.name === "AbortError" ? STOPPED : error.message });
    }
    setStep(null);
    look();
  };
  const used = data.reduce((sum, { size_bytes: size }) => sum + size, 0);
  return html`<section aria-label="Downloads">
    <h3>Get a model</h3>
    <form onSubmit=${get}>
      <input ref=${field} aria-label="Model on the Hugging Face Hub" placeholder="hf://owner/repo:Q4_K_M"
        required pattern="hf://.+" title="hf://owner/repo, a quant after a colon, or hf://owner/repo/file.gguf" />
      ${
        step
          ? html`<button type="button" onClick=${() => leave.current.abort()}>Stop</button>`
          : html`<button>Get</button>`
      }
    </form>
    ${step && html`<label class="progress"><progress max="1" value=${step.share}></progress>
      <small role="status">${step.step}, ${percent(step.share)}</small></label>`}
    ${result?.wrong && html`<p class="wrong" role="alert">${result.wrong}</p>`}
    ${
      result?.model &&
      html`<p role="status">Downloaded. Serve it with <code>${`cobali serve ${result.model}`}</code>
        <${CopyButton} textOf=${() => `cobali serve ${result.model}`} what="Copy the command" /></p>`
    }
    <details><summary>${some(data.length, "model")} on this machine, ${bytes(used)}; ${bytes(free)} free</summary>
      <ul>${data.map(
        ({ id, size_bytes: size }) => html`<li key=${id}><code>${id}</code> <small>${bytes(size)}</small></li>`,
      )}</ul></details>
  </section>`;
}
