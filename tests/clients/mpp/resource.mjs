// A paid resource of the public MPP packages (method solana, intent charge): RPC=http://... MINT=... PAY_TO=... PORT=8530 node resource.mjs
// The query of a request chooses what it demands: amount (micro-USDC, 10000 unless given), memo, split (ADDRESS:AMOUNT),
// sponsored=1 (fees are paid by the keypair in the file SPONSOR), auth=1 (the credential goes into Payment-Authorization),
// currency (MINT unless given).
import fs from "node:fs";
import http from "node:http";
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { Mppx, solana } from "@solana/mpp/server";

const { PORT, RPC, MINT, PAY_TO, SPONSOR } = process.env;
const signer = await createKeyPairSignerFromBytes(new Uint8Array(JSON.parse(fs.readFileSync(SPONSOR, "utf8"))));
const made = new Map();

function shop(query) {
  const [recipient, amount] = (query.get("split") ?? "").split(":");
  const currency = query.get("currency") ?? MINT;
  const method = solana.charge({
    recipient: PAY_TO,
    currency,
    decimals: 6,
    network: "localnet",
    rpcUrl: RPC,
    ...(query.get("sponsored") ? { signer } : {}),
    ...(recipient ? { splits: [{ recipient, amount }] } : {}),
  });
  const mppx = Mppx.create({
    methods: [method],
    ...(query.get("auth") ? { requiresAuth: true } : {}),
    realm: "weather.example",
    secretKey: "0123456789abcdef0123456789abcdef",
  });
  return { mppx, currency };
}

async function answer(url, request) {
  const key = url.search;
  if (!made.has(key)) made.set(key, shop(url.searchParams));
  const { mppx, currency } = made.get(key);
  const memo = url.searchParams.get("memo");
  const options = { amount: url.searchParams.get("amount") ?? "10000", currency, description: "The weather" };
  const result = await mppx.charge({ ...options, ...(memo ? { externalId: memo } : {}) })(request);
  return result.status === 402 ? result.challenge : result.withReceipt(Response.json({ weather: "sunny" }));
}

http
  .createServer(async (incoming, outgoing) => {
    const url = new URL(incoming.url, `http://127.0.0.1:${PORT}`);
    const headers = Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]);
    let found;
    try {
      found = await answer(url, new Request(url, { method: incoming.method, headers }));
    } catch (error) {
      console.log("threw", error);
      found = Response.json({ error: String(error) }, { status: 500 });
    }
    outgoing.writeHead(found.status, [...found.headers].flat());
    outgoing.end(Buffer.from(await found.arrayBuffer()));
  })
  .listen(Number(PORT), "127.0.0.1", () => console.log("mpp", PORT, "sponsor", signer.address));
