// A conversation as one page to hand on: the branch in sight to read, and all of it for the page to open again.
import { makeBlocks } from "../answer/blocks.js";
import { drawer } from "../answer/formula.js";
import { html, render } from "../parts/preact.js";
import { pathOf } from "../request/conversations.js";
import { DATA_ID, asJson, asText } from "./portable.js";

const MATH = /\$|\\[([]/;
const STYLE = `:root{color-scheme:light dark;font:16px/1.55 system-ui,sans-serif}
body{max-width:46rem;margin:0 auto;padding:2rem 1rem}h1{font-size:1.5rem}
.asked{margin:2rem 0 1rem;padding:.6rem 1rem;border-radius:12px;background:light-dark(#eef1f6,#1c2029)}
.plain,.asked{white-space:pre-wrap;overflow-wrap:anywhere}img{max-width:100%}
pre{padding:.7rem 1rem;overflow:auto;border-radius:8px;background:light-dark(#f4f6f9,#14171e);white-space:pre-wrap}
.table{overflow-x:auto}table{border-collapse:collapse}
td,th{padding:.3rem .6rem;border:1px solid light-dark(#cdd3dd,#3a4150)}
.task{list-style:none;margin-left:-1.3rem}.task p{display:inline}figure{margin:1rem 0}
figcaption,footer,.model{color:light-dark(#566072,#9ba5b6);font-size:.85rem}`;

/** Write the page. What a model or a user wrote becomes elements first, and never HTML by itself. */
export async function asPage(conversation) {
  const { title } = conversation;
  const path = pathOf(conversation);
  if (path.some(({ text }) => MATH.test(text))) await drawer.need();
  const messages = path.map((message) =>
    message.role === "user" ? html`<${UserTurn} message=${message} />` : html`<${ModelTurn} message=${message} />`,
  );
  const made = document.createElement("div");
  const hint = "To continue the conversation, import this file into a page of cobali_ray.";
  render(html`<h1>${title}</h1>${messages}<footer>${hint}</footer>`, made);
  // Browsers draw KaTeX's MathML.
  for (const element of made.querySelectorAll("button, .katex-html")) element.remove();
  for (const box of made.querySelectorAll("input:checked")) box.setAttribute("checked", "");
  const head = document.createElement("div");
  render(html`<title>${title}</title>`, head);
  const data = asJson([conversation]).replaceAll("<", "\\u003c"); // ends no element
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="content-security-policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
${head.innerHTML}
<style>${STYLE}</style>
</head>
<body>
${made.innerHTML}
<script type="application/json" id="${DATA_ID}">
${data}</script>
</body>
</html>
`;
}

const UserTurn = ({ message }) => html`<div class="asked">${asText({ ...message, images: [] })}
  ${(message.images ?? []).map(({ name, url }) => html`<img src=${url} alt=${name} />`)}</div>`;

const ModelTurn = ({ message: { model, text, calls } }) => html`<p class="model">${model || "Assistant"}</p>
  <div>${makeBlocks()(text, false, null)}</div>
  ${calls.map(
    ({ name, args, result }) =>
      html`<pre>${`${name}(${args})\n\n${result?.content ?? result?.error ?? ""}`.trimEnd()}</pre>`,
  )}`;
