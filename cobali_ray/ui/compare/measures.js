// The numbers of a compared answer, which of them are better, and both as text. No DOM.
import { begunS } from "../feed/lives.js";
import { count, digits, duration } from "../parts/format.js";

/** A number counts as better only if it is by this share: less is noise. */
export const LEAD = 0.05;

/** `better`: less or more; without it, no side is. */
export const MEASURES = [
  ["ttft_s", "TTFT", "less", duration, "Time to first token: from the arrival of the request"],
  ["itl_p50_s", "ITL, median", "less", duration, "Half of the gaps between two pieces of text were no longer"],
  ["itl_p99_s", "ITL, p99", "less", duration, "99 of 100 gaps were no longer"],
  ["itl_max_s", "Longest gap", "less", duration, "The longest pause between two pieces of text"],
  ["tokens_per_second", "Tokens per second", "more", digits, "Output tokens after the first"],
  ["completion_tokens", "Output tokens", null, count, "The end token included"],
  ["cached_tokens", "Cached tokens", null, count, "Tokens of the prompt that were cached, and so not computed"],
  ["queue_s", "Queue", null, duration, "From arrival to a slot"],
  ["finish", "Finish", null, String, "Why the answer ended"],
].map(([name, label, better, show, hint]) => ({ name, label, better, show, hint }));

/**
 * Return the numbers of one answer by the names of the measures, and who measured them (`from`).
 *
 * The server's come with a whole answer. Of one that was stopped, the engine's feed knows some.
 */
export function numbersOf(answer, request = null) {
  const { timings, usage } = answer;
  const finish = finishOf(answer);
  if (timings) {
    const { completion_tokens: output, prompt_tokens_details: prompt } = usage ?? {};
    const counted = { completion_tokens: output, cached_tokens: prompt?.cached_tokens };
    return { from: "server", numbers: { ...counted, ...timings, finish } };
  }
  return { from: request && "feed", numbers: { ...(request && fromFeed(request)), finish } };
}

const finishOf = ({ status, finishReason }) =>
  ({ stopped: "stopped by you", failed: "failed" })[status] ?? finishReason;

function fromFeed(request) {
  const { arrived_s: arrived, assigned_s: assigned, first_token_s: first, ended_s: ended } = request;
  const n = request.n_output;
  const decodeS = first !== null && ended ? ended - first : 0;
  return {
    ttft_s: first === null ? null : first - begunS(request),
    tokens_per_second: decodeS > 0 && n > 1 ? (n - (request.n_said ?? 0) - 1) / decodeS : null,
    completion_tokens: n,
    cached_tokens: request.n_cached,
    queue_s: assigned === null ? null : assigned - arrived,
  };
}

/** Return which of some values is better than all others, or -1: by so little that it may be chance. */
export function bestOf({ better }, values) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (!better || finite.length < 2 || finite.length < values.length) return -1;
  const order = [...values].sort((a, b) => (better === "less" ? a - b : b - a));
  const [less, more] = [Math.min(order[0], order[1]), Math.max(order[0], order[1])];
  return more > less * (1 + LEAD) ? values.indexOf(order[0]) : -1;
}

export const wordOf = (n) => (n === 2 ? "better" : "best");

/** What an answer says: its text and its calls. */
export const answerText = ({ text, calls }) =>
  [text, ...calls.map(({ name, args }) => `${name}(${args})`)].filter(Boolean).join("\n");

/** Return the comparison as an object for JSON. `sides` are `{name, body, answer, request}`. */
export function asObject({ kind, prompt }, sides) {
  return {
    kind,
    prompt,
    sides: sides.map(({ name, body, answer, request }) => {
      const { from, numbers } = numbersOf(answer, request);
      const { text, reasoning, calls, error } = answer;
      const calledFor = calls.map(({ name: called, args }) => ({ name: called, arguments: args }));
      return {
        name,
        request: body,
        answer: { text, reasoning, tool_calls: calledFor, error: error?.message ?? null },
        measured_by: from,
        numbers: Object.fromEntries(MEASURES.map((measure) => [measure.name, numbers[measure.name] ?? null])),
      };
    }),
  };
}

/** Return the comparison as Markdown: prompt, table, answers. */
export function asMarkdown({ prompt }, sides) {
  const all = sides.map(({ answer, request }) => numbersOf(answer, request).numbers);
  const rows = MEASURES.map((measure) => {
    const values = all.map((numbers) => numbers[measure.name] ?? null);
    const best = bestOf(measure, values);
    const marked = (i) => (i === best ? ` (${wordOf(values.length)})` : "");
    return [measure.label, ...values.map((value, i) => `${formatted(measure, value)}${marked(i)}`)];
  });
  const names = sides.map(({ name }) => name);
  const table = [["", ...names], ["---", ...names.map(() => "---")], ...rows];
  const answers = sides.map(({ name, answer }) => `## ${name}\n\n${answerText(answer) || "(no answer)"}`);
  const quoted = `> ${prompt.replaceAll("\n", "\n> ")}`;
  return `${[quoted, table.map(rowOf).join("\n"), ...answers].join("\n\n")}\n`;
}

const rowOf = (cells) =>
  `| ${cells.map((cell) => cell.replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`;

export const formatted = ({ show }, value) => (value === null || value === undefined ? "–" : show(value));
