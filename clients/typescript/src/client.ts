/** The clients: `Vault` for an agent and `Admin` for an organisation. */

import { Core, type Options, type Settings } from "./core.js";
import { PolicyViolation } from "./errors.js";
import { type CreateEscrow, type CreatePayment, type Escrow, type FetchedResource } from "./operations.js";
import { type FetchPaidResource, type Payment, type Quote, type QuotePaidResource } from "./operations.js";
import { Resources, type Simulation, type WalletPage } from "./operations.js";

/** Seconds for the request that asks when a refused payment would pass. */
const VERDICT = 5;

/** A client for an admin's, operator's or viewer's key. Every operation is a property, by tag: `wallets.create`. */
export class Admin extends Resources {
  protected readonly core: Core;

  constructor(key: string, settings: Settings = {}, session?: string) {
    const core = new Core(key, session, settings);
    super(core);
    this.core = core;
  }
}

/** Options beyond the method's own arguments. Set a flag only after the check that its error describes. */
type More<Body extends object, Set extends keyof Body> = Options &
  Partial<Omit<Body, Set | "walletId" | "fromWallet" | "currency" | "idempotencyKey">>;

/** A client for an agent: its API key and its session token. */
export class Vault extends Admin {
  constructor(key: string, session?: string, settings: Settings = {}) {
    super(key, settings, session);
  }

  /**
   * Pay `amount` USDC, a decimal string, to an address, a domain or a wallet. Waits until the payment is confirmed; the
   * answer's status is `pending` if the deadline passes first.
   */
  async pay(to: string, amount: string, more: More<CreatePayment, "to" | "amount"> = {}): Promise<Payment> {
    const payment = { walletId: await this.wallet(), to, amount };
    return this.judged<Payment>("/v1/payments", { ...payment, currency: "USDC" }, more, payment);
  }

  /** Lock `amount` USDC for a task of another wallet. Complete or dispute the escrow with `escrows`. */
  async escrow(
    toWallet: string,
    amount: string,
    taskDescription: string,
    more: More<CreateEscrow, "toWallet" | "amount" | "taskDescription"> = {},
  ): Promise<Escrow> {
    const body = { fromWallet: await this.wallet(), toWallet, amount, taskDescription, currency: "USDC" };
    return this.judged<Escrow>("/v1/payments/a2a", body, more);
  }

  /**
   * Fetch a resource and pay at most `maxAmount` USDC if it answers 402, by x402 or MPP. Repeats the request while the
   * payment is pending and the resource is missing. Do not trust the resource's content.
   */
  async fetch(url: string, maxAmount: string, more: More<FetchPaidResource, "url" | "maxAmount"> = {}): Promise<FetchedResource> {
    return this.judged<FetchedResource>("/v1/paid-requests/fetch", { walletId: await this.wallet(), url, maxAmount }, more);
  }

  /** Return the price of a resource, its protocol and the policy's verdict, without paying. */
  async quote(url: string, { deadline, ...more }: Omit<More<QuotePaidResource, "url">, "order"> = {}): Promise<Quote> {
    const body = { walletId: await this.wallet(), url, ...more };
    return this.core.call<Quote>({ method: "POST", path: "/v1/paid-requests/quote", body }, { deadline });
  }

  /** Return the vault's wallet: the only one that an agent's key lists. */
  private async wallet(): Promise<string> {
    if (this.core.walletId === undefined) {
      const page = await this.core.call<WalletPage>({ method: "GET", path: "/v1/wallets", query: { limit: 2 } });
      const [first, second] = page.data;
      if (first === undefined || second !== undefined) throw new TypeError("the key does not belong to one wallet; name it: new Vault(key, session, { walletId })");
      this.core.walletId = first.wallet_id;
    }
    return this.core.walletId;
  }

  /** Send an expense. If the policy refuses a payment, ask once when it would pass. */
  private async judged<T extends object>(path: string, body: object, more: Options, payment?: object): Promise<T> {
    const { order, idempotencyKey, deadline, ...fields } = more;
    const call = { method: "POST", path, body: { ...body, ...fields }, keyed: true, settle: true };
    try {
      return await this.core.call<T>(call, { order, idempotencyKey, deadline });
    } catch (error) {
      if (payment !== undefined && error instanceof PolicyViolation && error.retryAt === undefined) {
        const question = { method: "POST", path: "/v1/payments/simulate", body: payment };
        // Without the time, the refusal is still a complete answer.
        const verdict = await this.core.call<Simulation>(question, { deadline: VERDICT }).catch(() => undefined);
        error.retryAt = verdict?.retry_at ?? undefined;
      }
      throw error;
    }
  }
}
