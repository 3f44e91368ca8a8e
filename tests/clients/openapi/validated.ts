/**
 * Pays, is refused and reads with the zod schemas that @hey-api/openapi-ts generates, and prints one JSON object.
 *
 * Every body is checked before it is sent, and every response when it arrives. The environment variables URL, KEY and
 * PAYEE name the service, the admin key and whom to pay.
 */
import { env } from "node:process";
import type { ZodType, infer as Output, input as Input } from "zod";
import * as api from "./generated/zod.gen.js";

const { URL: baseUrl = "", KEY = "", PAYEE: to = "" } = env;

async function send<Of extends ZodType>(path: string, schema: Of, body?: object): Promise<Output<Of>> {
  const headers = { Authorization: `Bearer ${KEY}`, "Content-Type": "application/json" };
  const init = body && { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(baseUrl + path, { ...init, headers });
  return schema.parse(await response.json());
}

const order = api.zCreatePolicy.parse({ name: "Validated", maxPerTx: "5.00" } satisfies Input<typeof api.zCreatePolicy>);
const policy = await send("/v1/policies", api.zPolicy, order);
const label = "Zoë ❤️ 東京 😀";
const made = api.zCreateWallet.parse({ agentId: "zod", label, policyId: policy.policy_id, tags: ["a"] });
const wallet = await send("/v1/wallets", api.zWallet, made);
const funds = api.zFundWallet.parse({ amount: "10.00" });
const funded = await send(`/v1/wallets/${wallet.wallet_id}/fund`, api.zFundWalletResponse, funds);

const payment = api.zCreatePayment.parse({ walletId: wallet.wallet_id, to, amount: "4.50", currency: "USDC" });
const paid = await send("/v1/payments", api.zCreatePaymentResponse, payment);
const refused = await send("/v1/payments", api.zPolicyViolationEnvelope, { ...payment, amount: "6.00" });
const page = await send(`/v1/wallets/${wallet.wallet_id}/transactions`, api.zListWalletTransactionsResponse);

const wrong = [
  api.zCreatePayment.safeParse({ ...payment, amount: "4.5000001" }),
  api.zCreateWallet.safeParse({ ...made, label: "Al\u200bice" }),
  api.zCreateWallet.safeParse({ ...made, tags: ["a,b"] }),
];

console.log(
  JSON.stringify({
    label: wallet.label,
    balance: funded.usdc_balance,
    status: paid.status,
    refused: [refused.error.code, refused.error.violation.rule],
    listed: page.data.map(({ type, status }) => [type, status]),
    accepted: wrong.filter(({ success }) => success).length,
  }),
);
