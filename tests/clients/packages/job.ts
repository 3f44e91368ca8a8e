// Uses the installed client for TypeScript: `job.js MODE ARGUMENT...`. Prints one JSON object.
import { argv, env } from "node:process";
import { Admin, FolderStore, idempotencyKeyOf, OutcomeUnknown, PolicyViolation } from "agent-vault-client";
import { SignatureInvalid, Vault, VaultError, verifyWebhook } from "agent-vault-client";

const given = (name: string): string => env[name] ?? "";
const PRICE = "0.01";
const STARTED = Date.now() / 1000;

/** Return a time that may be ahead, or pass faster than it does. */
function clock(): number {
  const passed = (Date.now() / 1000 - STARTED) * Number(env["SPEED"] ?? 1);
  return STARTED + passed + Number(env["AHEAD"] ?? 0);
}

function told(error: VaultError): object {
  const { code, status, retryAfter } = error;
  const more =
    error instanceof PolicyViolation
      ? { rule: error.rule, limit: error.limit, attempted: error.attempted }
      : error instanceof OutcomeUnknown
        ? { wallet_id: error.walletId, payee: error.payee, amount: error.amount }
        : {};
  return { error: error.name, code, status, retry_after: retryAfter ?? null, idempotency_key: error.idempotencyKey, ...more };
}

function opened(baseUrl: string): Vault {
  const settings = {
    baseUrl,
    store: new FolderStore(given("STORE")),
    clock,
    deadline: Number(env["DEADLINE"] ?? 60),
    ...(env["WALLET"] ? { walletId: env["WALLET"] } : {}),
  };
  return new Vault(given("KEY"), given("SESSION"), settings);
}

async function paid(baseUrl: string, order: string): Promise<object> {
  try {
    const payment = await opened(baseUrl).pay(given("TO"), PRICE, { order });
    return { status: payment.status, tx_id: payment.tx_id, idempotency_key: idempotencyKeyOf(payment) };
  } catch (error) {
    if (error instanceof VaultError) return told(error);
    throw error;
  }
}

const modes: Record<string, (...names: string[]) => Promise<unknown>> = {
  /** Pay orders, eight at a time. */
  async orders(count = "0") {
    const outcomes: object[] = [];
    let next = 0;
    const work = async (): Promise<void> => {
      for (let number = next++; number < Number(count); number = next++) {
        outcomes.push(await paid(given("URL"), `${given("PREFIX")}-${number}`));
      }
    };
    await Promise.all(Array.from({ length: 8 }, work));
    return outcomes;
  },

  /** Pay once at each address below the service's. */
  async cases(...names) {
    const one = async (name: string): Promise<[string, object]> => [name, await paid(`${given("URL")}/${name}`, name)];
    return Object.fromEntries(await Promise.all(names.map(one)));
  },

  /** Ask for the price of each resource, and buy it. */
  async buy(...urls) {
    const vault = opened(given("URL"));
    const found: object[] = [];
    for (const url of urls) {
      const { protocol, price } = await vault.quote(url);
      const bought = await vault.fetch(url, "0.05");
      const { payment, resource } = bought;
      const key = idempotencyKeyOf(bought) !== undefined;
      found.push({ protocol, price, key, status: payment?.status, tx_id: payment?.tx_id, body: resource?.body });
    }
    return found;
  },

  /** Buy a resource that the policy does not allow. */
  async refused(url = "") {
    const error = await opened(given("URL")).fetch(url, "0.05").catch((one: unknown) => one);
    if (!(error instanceof VaultError)) throw new Error("it was not refused");
    return told(error);
  },

  /** Lock money for another wallet's task. */
  async lock(worker = "") {
    const { status, amount, to_wallet } = await opened(given("URL")).escrow(worker, "1.00", "Translate", { timeoutSeconds: 600 });
    return { status, amount, to_wallet };
  },

  /** Verify requests of a webhook: the secret, the headers and the body. */
  async verify(...requests) {
    const found: string[] = [];
    for (const request of requests) {
      const [secret, headers, body] = JSON.parse(request);
      try {
        found.push((await verifyWebhook(Buffer.from(body, "base64"), headers, secret)).event);
      } catch (error) {
        if (!(error instanceof SignatureInvalid)) throw error;
        found.push("invalid");
      }
    }
    return found;
  },

  /** Call every operation once, with "{}" for each argument, and return the requests. */
  async operations() {
    const sent: string[] = [];
    const answer = async (request: string | URL | Request): Promise<Response> => {
      const { method, url } = request as Request;
      sent.push(`${method} ${decodeURIComponent(new URL(url).pathname)}`);
      return Response.json({ data: [] });
    };
    const { core: _, ...resources } = new Admin("avk_test", { fetch: answer }) as unknown as Record<string, any>;
    for (const resource of Object.values(resources)) {
      for (const name of Object.getOwnPropertyNames(Object.getPrototypeOf(resource))) {
        if (name === "constructor") continue;
        const answered = resource[name](...Array(resource[name].length).fill("{}"));
        if (Symbol.asyncIterator in answered) await answered.next();
        else await answered;
      }
    }
    return sent;
  },

  /** Make a policy, a wallet and a payment, and be refused. */
  async quickstart(agentId = "") {
    const baseUrl = given("URL");
    const admin = new Admin(given("KEY"), { baseUrl });
    const policy = await admin.policies.create({ name: "Quick start", maxPerTx: "5.00", maxPerDay: "20.00" });
    const wallet = await admin.wallets.create({ agentId, label: "Quick start", policyId: policy.policy_id });
    const funded = await admin.wallets.fund(wallet.wallet_id, { amount: "10.00" });
    const { key } = await admin.keys.create({ role: "agent", name: "Quick start", walletId: wallet.wallet_id });
    const { session_token } = await admin.wallets.rotateSessionToken(wallet.wallet_id, { ttlSeconds: 3600 });
    const vault = new Vault(key, session_token, { baseUrl });
    const { status } = await vault.pay(given("TO"), "4.50");
    const refusal = await vault.pay(given("TO"), "6.00").catch((error: unknown) => error);
    if (!(refusal instanceof PolicyViolation)) throw new Error("it was not refused");
    const rows: string[] = [];
    for await (const row of vault.transactions.list({ limit: 1 })) rows.push(row.amount);
    return { balance: funded.usdc_balance, status, refused: { ...told(refusal), remedy: refusal.remedy !== "" }, rows };
  },
};

const [mode = "", ...names] = argv.slice(2);
console.log(JSON.stringify(await modes[mode]?.(...names)));
