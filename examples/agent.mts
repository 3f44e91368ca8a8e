// An agent that buys a URL through the vault's tools: npx tsx agent.mts URL [MOST]
import { randomUUID } from "node:crypto";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { AGENT_VAULT_URL = "http://127.0.0.1:8402", AGENT_VAULT_API_KEY, AGENT_VAULT_SESSION_TOKEN } = process.env;
const [url, most = "0.05"] = process.argv.slice(2);

interface Result {
  outcome: "done" | "pending" | "refused" | "invalid" | "unavailable" | "unknown";
  message: string;
  refusal: { rule: string; retry_at: string | null } | null;
  data: any;
}

const headers = { Authorization: `Bearer ${AGENT_VAULT_API_KEY}`, "Session-Token": String(AGENT_VAULT_SESSION_TOKEN) };
const vault = new Client({ name: "example-agent", version: "1.0.0" });
await vault.connect(new StreamableHTTPClientTransport(new URL(`${AGENT_VAULT_URL}/mcp`), { requestInit: { headers } }));

async function call(tool: string, args: Record<string, unknown>): Promise<Result> {
  return (await vault.callTool({ name: tool, arguments: args })).structuredContent as unknown as Result;
}

/** Buy the URL for at most `most` USDC. Retries use the same key, so they never pay twice. */
async function buy(): Promise<Result> {
  const order = { url, max_amount: most, idempotency_key: `agent-${randomUUID()}` };
  for (;;) {
    const result = await call("fetch_paid_url", order);
    if (!["pending", "unknown", "unavailable"].includes(result.outcome)) return result;
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

const quote = await call("quote_paid_url", { url });
console.error(`price: ${quote.data?.price} USDC`);
const bought = await buy();
console.log(JSON.stringify(bought.data ?? { refused: bought.message, rule: bought.refusal }));
await vault.close();
process.exitCode = bought.outcome === "done" ? 0 : 1;
