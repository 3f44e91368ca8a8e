// Shows the OpenAPI document in Swagger UI, which sends its calls to the service that served this page.
"use strict";

async function explore() {
  const answer = await fetch("/openapi.json");
  const spec = await answer.json();
  spec.servers = [{ url: location.origin }];
  SwaggerUIBundle({
    spec,
    dom_id: "#explorer",
    deepLinking: true,
    // Eighty operations at once take a browser seconds.
    docExpansion: "none",
    filter: true,
    // Keys are held in the page's memory only.
    persistAuthorization: false,
    tryItOutEnabled: true,
    // The validator would be another host.
    validatorUrl: null,
  });
}

explore().catch((error) => {
  document.querySelector("#explorer").textContent = `The interface could not be loaded: ${error.message}`;
});
