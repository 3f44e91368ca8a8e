// An API that charges 0.01 USDC for the weather, with @x402/express: PORT=8520 node paid_api.mjs
import express from "express";
import { paymentMiddleware, x402ResourceServer } from "@x402/express";
import { HTTPFacilitatorClient } from "@x402/core/server";
import { ExactSvmScheme } from "@x402/svm/exact/server";

const { PORT = "8520", FACILITATOR = "http://127.0.0.1:8510", NETWORK, MINT, PAY_TO } = process.env;
const server = new x402ResourceServer(new HTTPFacilitatorClient({ url: FACILITATOR }));
server.register(NETWORK, new ExactSvmScheme({}));

// On a public cluster the price "$0.01" is enough. A local chain has its own mint, so name it.
const price = { amount: "10000", asset: MINT };
const accepts = { scheme: "exact", network: NETWORK, payTo: PAY_TO, price, maxTimeoutSeconds: 60 };
const routes = { "GET /weather": { accepts, description: "The weather", mimeType: "application/json" } };

const app = express();
app.use(paymentMiddleware(routes, server));
app.get("/weather", (_request, response) => response.json({ weather: "sunny", temperature: 21 }));
app.listen(Number(PORT), "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT}/weather`));
