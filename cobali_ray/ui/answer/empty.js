// Shown where there is nothing yet: what this is, and a way to begin.
import { Strip } from "../feed/strip.js";
import { BASE } from "../parts/api.js";
import { toMessage } from "../parts/focus.js";
import { Icon } from "../parts/icons.js";
import { html } from "../parts/preact.js";
import { useStore } from "../parts/store.js";
import { modelOf, models } from "../request/models.js";

/** For `builtin:tiny`, which knows little else; tests ask it each of them twenty times. */
const EXAMPLES = [
  "Explain continuous batching in three bullet points.",
  "Write a short story about a sailor and a lamp.",
  "Ada is 36 years old. Answer in JSON.",
  "What is 17 + 25?",
];
/** For any other model. */
const GENERAL = [
  "Explain how a hash map works, with a short example in Python.",
  "Compare SQLite, PostgreSQL and DuckDB in a table.",
  "Plan three simple dinners for two, with one shopping list.",
  "Write a polite email that moves a meeting to Thursday.",
];
const WHAT =
  "The model runs on this server only. Requests share an engine, and you can watch live how " +
  "its scheduler divides each tick among them.";

/** Prompts that work on the chosen model, which `send` takes; what this is, and the engine's last ticks. */
export function Empty({ title = null, text = WHAT, send, chosen = "" }) {
  const { all } = useStore(models);
  const model = modelOf(chosen);
  const tiny = all.find(({ id }) => id === model)?.description?.startsWith("builtin:tiny");
  return html`<div class=${`empty ${title ? "" : "welcome"}`}>
    <h2>${title ?? `Chat with ${model || "the model"}`}</h2>
    <p>${text}</p>
    ${
      all.length > 0 &&
      html`<ul class="examples">${(tiny ? EXAMPLES : GENERAL).map(
        (prompt) => html`<li key=${prompt}><button onClick=${(event) => (send(prompt), toMessage(event))}>
          ${prompt}<${Icon} name="send" /></button></li>`,
      )}</ul>`
    }
    ${
      tiny &&
      html`<p class="hint">tiny is the built-in demo model: 4.5 million parameters, made for prompts like these.
        For real work, serve another: <code>cobali serve FILE.gguf</code></p>`
    }
    <${Strip} />
    <p class="hint">OpenAI, Anthropic and Ollama clients can use the same server at${" "}
      <code>${new URL("v1", BASE).href}</code>. See its <a href="docs">API reference</a>.</p>
  </div>`;
}
