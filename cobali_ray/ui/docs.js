// The API's operations, drawn by Swagger UI from this server's own schema, in the colours of the page.
import { forGood, kept } from "./parts/store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

function colour() {
  const choice = kept(forGood, "theme", system.matches ? "dark" : "light"); // of the page
  document.documentElement.classList.toggle("dark-mode", choice === "dark");
}

colour();
system.addEventListener("change", colour);
SwaggerUIBundle({
  url: "openapi.json",
  domNode: document.getElementById("docs"),
  deepLinking: true,
  defaultModelsExpandDepth: -1,
  docExpansion: "list",
  tryItOutEnabled: false,
  validatorUrl: null,
});
