// The API's operations, drawn by Swagger UI from this server's own schema.
SwaggerUIBundle({
  url: "openapi.json",
  domNode: document.getElementById("docs"),
  deepLinking: true,
  defaultModelsExpandDepth: -1,
  docExpansion: "list",
  tryItOutEnabled: false,
  validatorUrl: null,
});
