// The text of a PDF, page by page. Loaded when one is attached.
import { BASE } from "../parts/api.js";
import { GlobalWorkerOptions, VerbosityLevel, getDocument } from "../vendor/pdf-6.5.438.js";

GlobalWorkerOptions.workerSrc = new URL("ui/vendor/pdf-worker-6.5.438.js", BASE).href;

/** Return the text in a PDF's bytes. Throws an Error where it cannot be read, or has none. */
export async function textOfPdf(data, name) {
  const loading = getDocument({
    data,
    verbosity: VerbosityLevel.ERRORS,
    disableFontFace: true,
    useSystemFonts: false,
    useWasm: false,
    useWorkerFetch: false,
    isImageDecoderSupported: false,
  });
  try {
    const pdf = await loading.promise;
    const pages = [];
    for (let i = 1; i <= pdf.numPages; i += 1) {
      const { items } = await (await pdf.getPage(i)).getTextContent();
      pages.push(items.map(({ str = "", hasEOL = false }) => str + (hasEOL ? "\n" : "")).join("").trim());
    }
    const text = pages.join("\n\n").trim();
    if (!text) throw new Error(`${name} contains no text. Its pages may be scanned images.`);
    return text;
  } catch (error) {
    if (error.name === "PasswordException") throw new Error(`${name} needs a password, so it cannot be read.`);
    if (error.name === "InvalidPDFException") throw new Error(`${name} is not a PDF that can be read.`);
    throw error;
  } finally {
    loading.destroy();
  }
}
