// A buyer of the public packages: RPC=... KEY=key.json node fetch.mjs URL...
// Asks for one URL after the other, pays from its keypair what is demanded, and prints the statuses as a JSON array.
import fs from "node:fs";
import { createKeyPairSignerFromBytes } from "@solana/kit";
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";
import { ExactSvmScheme } from "@x402/svm/exact/client";

const { RPC, KEY } = process.env;
const signer = await createKeyPairSignerFromBytes(new Uint8Array(JSON.parse(fs.readFileSync(KEY, "utf8"))));
const client = new ExactSvmScheme(signer, { rpcUrl: RPC });
const pay = wrapFetchWithPaymentFromConfig(fetch, { schemes: [{ network: "solana:*", client }], spendControls: false });
const statuses = [];
for (const url of process.argv.slice(2)) statuses.push((await pay(url)).status);
console.log(JSON.stringify(statuses));
