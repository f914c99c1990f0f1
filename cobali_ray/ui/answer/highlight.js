// Code into coloured elements. Loaded on demand.
import { html } from "../parts/preact.js";
import hljs from "../vendor/highlight-11.12.0.js";

/** Gathers elements where the library's own emitter writes HTML. */
class Elements {
  constructor() {
    this.open = [{ scope: null, children: [] }];
  }
  addText(text) {
    const { children } = this.open.at(-1);
    if (typeof children.at(-1) === "string") children.push(children.pop() + text);
    else if (text) children.push(text);
  }
  startScope(scope) {
    this.open.push({ scope, children: [] });
  }
  endScope() {
    const { scope, children } = this.open.pop();
    this.open.at(-1).children.push(html`<span class=${`hl-${scope.split(".")[0]}`}>${children}</span>`);
  }
  openNode(scope) {
    this.startScope(scope);
  }
  closeNode() {
    this.endScope();
  }
  __addSublanguage({ open }) {
    this.open.at(-1).children.push(...open[0].children);
  }
  finalize() {
    while (this.open.length > 1) this.endScope();
  }
  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Elements });

/** Return the elements of a code; of a language that is not known, the code itself. */
export function highlight(code, language) {
  if (!hljs.getLanguage(language)) return code;
  return hljs.highlight(code, { language, ignoreIllegals: true })._emitter.open[0].children;
}
