// The text of a DOCX: a ZIP file whose word/document.xml has the paragraphs. Loaded when one is attached.
import { piecesOf } from "../parts/sse.js";

const DOCUMENT = "word/document.xml";
const MOST_BYTES = 64 * 1024 * 1024; // unpacked
const [END, ENTRY, STORED, DEFLATED] = [0x06054b50, 0x02014b50, 0, 8];
const END_BYTES = 22; // of the directory's end, behind which there may be a comment
const MOST_COMMENT = 0xffff;

/** Return the text in a DOCX file's bytes, with headings and lists as Markdown. Throws an Error where it is none. */
export async function textOfDocx(data, name) {
  let xml;
  try {
    xml = new DOMParser().parseFromString(await unpacked(data, DOCUMENT), "application/xml");
  } catch {
    throw new Error(`${name} is not a DOCX file that can be read.`);
  }
  for (const second of elementsOf(xml, "Fallback")) second.remove(); // these repeat what is there already
  const [body] = elementsOf(xml, "body");
  const text = body ? blocksOf(body).join("\n").trim() : "";
  if (!text) throw new Error(`${name} contains no text.`);
  return text;
}

const elementsOf = (part, name) => [...part.getElementsByTagNameNS("*", name)];

/** Return a file of a ZIP as text. */
async function unpacked(data, path) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const { method, from, to } = entryOf(view, data, path);
  const packed = data.subarray(from, to);
  if (method === STORED) return new TextDecoder().decode(packed);
  if (method !== DEFLATED) throw new Error("It uses a compression that is not supported.");
  const decoder = new TextDecoder();
  let [text, n] = ["", 0];
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  for await (const piece of piecesOf(stream)) {
    n += piece.length;
    if (n > MOST_BYTES) throw new Error("It is too large.");
    text += decoder.decode(piece, { stream: true });
  }
  return text + decoder.decode();
}

/** Find a file by the ZIP's directory, at its end: how it is packed, and where its bytes are. */
function entryOf(view, data, path) {
  let end = data.length - END_BYTES;
  while (view.getUint32(end, true) !== END) {
    end -= 1;
    if (end < data.length - END_BYTES - MOST_COMMENT) throw new Error("It is not a ZIP file.");
  }
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0 && view.getUint32(at, true) === ENTRY; left -= 1) {
    const [nName, nExtra, nComment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    if (new TextDecoder().decode(data.subarray(at + 46, at + 46 + nName)) === path) {
      const head = view.getUint32(at + 42, true);
      const from = head + 30 + view.getUint16(head + 26, true) + view.getUint16(head + 28, true);
      return { method: view.getUint16(at + 10, true), from, to: from + view.getUint32(at + 20, true) };
    }
    at += 46 + nName + nExtra + nComment;
  }
  throw new Error("It contains no document.");
}

/** The lines of a part of the document; cells of a table's row stand beside each other. */
const blocksOf = (part) =>
  [...part.children].flatMap((child) => {
    if (child.localName === "p") return [paragraphOf(child)];
    if (child.localName.startsWith("sdt")) return blocksOf(child); // a control, and what is in it
    if (child.localName !== "tbl") return [];
    const rows = [...child.children].filter(({ localName }) => localName === "tr");
    return rows.map((row) =>
      [...row.children]
        .filter(({ localName }) => localName === "tc")
        .map((cell) => blocksOf(cell).join(" ").trim())
        .join(" | "),
    );
  });

function paragraphOf(paragraph) {
  const text = elementsOf(paragraph, "*").map(runOf).join("");
  const style = elementsOf(paragraph, "pStyle")[0]?.getAttribute("w:val") ?? "";
  const level = /^(?:heading|title)\s*([1-6])?/i.exec(style);
  if (level && text) return `\n${"#".repeat(Number(level[1] ?? 1))} ${text}\n`;
  const listed = elementsOf(paragraph, "numPr").length > 0;
  return listed ? `- ${text}` : `${text}\n`;
}

const SIGNS = { tab: "\t", br: "\n", cr: "\n", noBreakHyphen: "-" };

/** What an element itself adds to the text; tabs are also settings of a paragraph, which say nothing. */
const runOf = ({ localName, textContent, parentElement }) =>
  localName === "t" ? textContent : parentElement.localName === "r" ? (SIGNS[localName] ?? "") : "";
