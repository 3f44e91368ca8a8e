/**
 * Runs the quick start with the types that openapi-typescript generates, and prints the results as one JSON object.
 *
 * The environment variables URL, KEY and PAYEE name the service, the admin key and whom to pay.
 */
import { env } from "node:process";
import createClient from "openapi-fetch";
import type { components, paths } from "./generated.js";

const { URL: baseUrl = "", KEY = "", PAYEE: to = "" } = env;

/** Returns what a request answered, or throws its error: a client branches on one of the two. */
function expect<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

const admin = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${KEY}` } });

// Optional fields are left out.
const policy = expect(
  await admin.POST("/v1/policies", { body: { name: "Generated", maxPerTx: "5.00", maxPerDay: "20.00" } }),
);
// Without `?sign=offline` nothing waits for a signature.
if (!("policy_id" in policy)) throw new Error("the policy waits for a signature");
const wallet = expect(
  await admin.POST("/v1/wallets", {
    body: { agentId: "openapi-typescript-agent", label: "Generated", policyId: policy.policy_id },
  }),
);
const path = { wallet_id: wallet.wallet_id };
const funded = expect(await admin.POST("/v1/wallets/{wallet_id}/fund", { params: { path }, body: { amount: "10.00" } }));
const { key } = expect(await admin.POST("/v1/keys", { body: { role: "agent", walletId: wallet.wallet_id } }));
const session = expect(
  await admin.POST("/v1/wallets/{wallet_id}/rotate-token", { params: { path }, body: { ttlSeconds: 3600 } }),
);

const agent = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
const header = { "Session-Token": session.session_token };

function pay(amount: string) {
  const body: components["schemas"]["CreatePayment"] = { walletId: wallet.wallet_id, to, amount, currency: "USDC" };
  return agent.POST("/v1/payments", { params: { header }, body });
}

const paid = expect(await pay("4.50"));
const { error: refusal, response } = await pay("6.00");
if (refusal === undefined || !("violation" in refusal.error)) throw new Error("not refused by a rule");
const page = expect(await admin.GET("/v1/transactions", { params: { query: { status: "blocked", limit: 1 } } }));
const [blocked] = page.data;

console.log(
  JSON.stringify({
    balance: funded.usdc_balance,
    status: paid.status,
    slot: paid.on_chain_slot,
    memo: paid.memo,
    refused: [response.status, refusal.error.code, refusal.error.violation],
    blocked: blocked?.amount,
  }),
);
