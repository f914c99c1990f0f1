// Files attached to a message: which are accepted, and how many tokens each has. No drawing.
import { call } from "../parts/api.js";
import { bytes, count } from "../parts/format.js";
import { withFiles } from "../request/conversations.js";

const MOST_BYTES = 4 * 1024 * 1024;
const MOST_BYTES_PER_TOKEN = 16; // more in one token is rare
const MOST_DOCUMENT_BYTES = 32 * 1024 * 1024; // of which much is no text
const MOST_IMAGE_BYTES = 5 * 1024 * 1024; // as a data URL a third more, of the 8 MiB that a request may have
const READERS = {
  pdf: async (data, name) => (await import("./pdf.js")).textOfPdf(data, name),
  docx: async (data, name) => (await import("./docx.js")).textOfDocx(data, name),
};
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif"]);

/**
 * Read a file for a model as /v1/models lists it. Returns `{file}` or `{image}`; throws an Error that says why not.
 *
 * `nTokens`: of the files that are there already.
 */
export async function attachmentOf(file, model, nTokens = 0) {
  const { name, size, type } = file;
  if (!size) throw new Error(`${name} is empty.`);
  if (type.startsWith("image/") && type !== "image/svg+xml") return { image: await imageOf(file, model) };
  const most = model?.max_model_len ?? Infinity;
  const read = READERS[/\.(pdf|docx)$/i.exec(name)?.[1].toLowerCase()];
  const tooLong = (n) =>
    new Error(`${name} is too long: ${bytes(n)}, and the model reads ${count(most)} tokens at most.`);
  const mostText = Math.min(MOST_BYTES, most * MOST_BYTES_PER_TOKEN);
  if (size > (read ? MOST_DOCUMENT_BYTES : mostText)) throw tooLong(size);
  const text = await (read ?? textOf)(new Uint8Array(await file.arrayBuffer()), name);
  if (text.length > mostText) throw tooLong(text.length);
  const attached = { name, size, text, nTokens: await countOf({ name, text }, model) };
  if (nTokens + (attached.nTokens ?? 0) >= most) {
    const beside = nTokens ? `, with the other files ${count(nTokens + attached.nTokens)}` : "";
    throw new Error(
      `${name} is too long: ${count(attached.nTokens)} tokens${beside}, and the model reads ${count(most)} at most.`,
    );
  }
  return { file: attached };
}

/** Return a file's text. Throws an Error where it is none. */
function textOf(data, name) {
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    // No UTF-8, so no text that could be sent.
  }
  if (text === null || text.includes("\0"))
    throw new Error(`${name} is not text in UTF-8. Text, PDF and DOCX can be attached.`);
  return text;
}

async function imageOf(file, model) {
  const { name, size, type } = file;
  if (!model?.architecture?.input_modalities?.includes("image"))
    throw new Error(`${name} is an image, and ${model?.id ?? "this model"} reads only text.`);
  if (!PICTURES.has(type)) throw new Error(`${name} is not a PNG, JPEG or GIF file.`);
  if (size > MOST_IMAGE_BYTES)
    throw new Error(`${name} is ${bytes(size)}; images may have at most ${bytes(MOST_IMAGE_BYTES)}.`);
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${name} cannot be read.`));
    reader.readAsDataURL(file);
  });
  return { name, size, url };
}

/** How many tokens a file is as it will be sent, template included; null where the server cannot say. */
async function countOf(file, model) {
  const messages = [{ role: "user", content: withFiles({ text: "", files: [file] }) }];
  try {
    const response = await call("v1/chat/completions/input_tokens", {
      body: { ...(model && { model: model.id }), messages },
    });
    return (await response.json()).input_tokens;
  } catch (error) {
    if (error.code === "context_length_exceeded")
      throw new Error(
        `${file.name} is too long: the model reads ${count(model?.max_model_len)} tokens at most.`,
      );
    return null;
  }
}
