// What stands where there is nothing yet: what one would see, and how to get there.
import { send } from "./play.js";
import { html } from "./preact.js";

const EXAMPLES = [
  "Explain continuous batching in three bullet points.",
  "Write a short story about a sailor and a lamp.",
  "Ada is 36 years old. Answer in JSON.",
];

/** An empty playground with prompts to begin with. */
export function Empty({ title, text }) {
  return html`<div class="empty">
    <h2>${title}</h2>
    <p>${text}</p>
    <ul>${EXAMPLES.map(
      (example) => html`<li key=${example}><button onClick=${() => send(example)}>${example}</button></li>`,
    )}</ul>
  </div>`;
}
