/** The core of the clients: calls, retries, deadlines and keys. */

import { DeadlineExceeded, InvalidAnswer, OutcomeUnknown, RateLimited } from "./errors.js";
import { failure, isObject, Unreachable, VaultError } from "./errors.js";

export const VERSION = "0.1.0";

/** Seconds for which a key may be sent again. The service keeps keys for 24 hours. */
const KEY_LIFETIME = 23 * 3600;
/** Seconds by which a stored key's first use may lie in the future. A larger difference means that the clock was moved. */
const CLOCK_ERROR = 300;
/** Seconds that one attempt may take. */
const ATTEMPT = 30;
const FIRST_PAUSE = 0.25;
const LONGEST_PAUSE = 8;
/** Maximum number of attempts if the service fails unexpectedly or the response is not the service's. */
const FEW = 3;

/** An order's key, the Unix time in seconds of its first use, and the facts with which to find the payment. */
export interface StoredKey {
  order: string;
  key: string;
  created_at: number;
  wallet_id: string;
  payee: string;
  amount: string;
}

/**
 * Keeps the key of each order. `claim` returns the order's stored key, after storing the new one durably if there is
 * none. Simultaneous claims of an order must all return the same key, even in different processes.
 */
export interface KeyStore {
  claim(fresh: StoredKey): Promise<StoredKey>;
}

/** Settings of a client. `deadline` limits each call, in seconds. `clock` returns the host's Unix time in seconds. */
export interface Settings {
  /** Needed only with a key for several wallets. */
  walletId?: string;
  baseUrl?: string;
  deadline?: number;
  store?: KeyStore;
  clock?: () => number;
  fetch?: typeof fetch;
}

/**
 * Options of a call. With a store, `order` is your name for the change, such as an invoice's number: a repetition, even
 * of another process, has no second effect.
 */
export interface Options {
  order?: string | undefined;
  idempotencyKey?: string | undefined;
  ifMatch?: string | undefined;
  deadline?: number | undefined;
}

/** A request to an operation. `settle` repeats it while its payment is pending. */
export interface Call {
  method: string;
  path: string;
  body?: object;
  query?: object | undefined;
  keyed?: boolean;
  offline?: boolean;
  settle?: boolean;
}

/** The rows of a list, read page by page: `for await (const row of rows)`. */
export type Rows<T> = AsyncIterable<T>;

const received = new WeakMap<object, { headers: Headers; key: string | undefined }>();

/** Return the headers of the response that contained an answer, such as its `ETag`. */
export function headersOf(answer: object): Headers {
  return received.get(answer)?.headers ?? new Headers();
}

/** Return the idempotency key of the change that an answer belongs to. */
export function idempotencyKeyOf(answer: object): string | undefined {
  return received.get(answer)?.key;
}

const sleep = (seconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const now = (): number => performance.now() / 1000;

export class Core {
  walletId: string | undefined;
  private readonly base: string;
  private readonly clock: () => number;

  constructor(private readonly key: string, private readonly session: string | undefined, readonly settings: Settings) {
    this.walletId = settings.walletId;
    this.base = (settings.baseUrl ?? "http://127.0.0.1:8402").replace(/\/+$/, "");
    this.clock = settings.clock ?? ((): number => Date.now() / 1000);
    if (!/^https?:\/\//.test(this.base)) throw new TypeError("baseUrl must start with http:// or https://");
  }

  /** Send a call until its outcome is known or its deadline passes. */
  async call<T extends object>(call: Call, options: Options = {}): Promise<T> {
    const unusable = this.settings.store === undefined || options.idempotencyKey !== undefined;
    if (options.order !== undefined && unusable) throw new TypeError("order needs a client with a store, and cannot be used with idempotencyKey");
    const seconds = options.deadline ?? this.settings.deadline ?? 60;
    const ends = now() + seconds;
    const request = this.request(call, options);
    let stored: StoredKey | undefined;
    let answer: T | undefined;
    let last: VaultError | undefined;
    for (let attempts = 1; ; attempts++) {
      let pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** attempts) * (0.5 + Math.random() / 2);
      try {
        if (call.keyed) {
          const time = options.order === undefined ? this.clock() : await this.serviceTime(ends);
          const age = time - (stored ??= await this.claimed(call, options, time)).created_at;
          request.headers.set("Idempotency-Key", stored.key);
          if (!(age >= -CLOCK_ERROR && age < KEY_LIFETIME)) throw new OutcomeUnknown(stored, last);
        }
        const { headers, found } = await this.attempt<T>(request, ends);
        received.set(found, { headers, key: stored?.key });
        answer = found;
        if (!(call.settle && unsettled(answer))) return answer;
      } catch (error) {
        if (!(error instanceof VaultError)) throw error;
        error.idempotencyKey = stored?.key;
        if (!passing(error, attempts)) throw error;
        last = error;
        if (error.retryAfter !== undefined) pause = error.retryAfter + Math.random() * FIRST_PAUSE * attempts;
      }
      if (now() + pause >= ends) {
        if (answer !== undefined) return answer;
        throw last instanceof RateLimited && attempts === 1 ? last : new DeadlineExceeded(seconds, last, stored?.key);
      }
      await sleep(pause);
    }
  }

  /** Return the service's Unix time, by which keys expire, or the host's time if the service sends none. */
  private async serviceTime(ends: number): Promise<number> {
    const request = this.request({ method: "GET", path: "/v1/wallets", query: { limit: 1 } }, {});
    const told = (await this.attempt(request, ends)).headers.get("Service-Time");
    return told === null ? this.clock() : Date.parse(told) / 1000;
  }

  /** Yield the rows of a list, page by page. */
  async *rows<T>(call: Call, options: Options = {}): Rows<T> {
    for (let query = call.query; ; ) {
      const page = await this.call<{ data: T[]; next_cursor?: string | null }>({ ...call, query }, options);
      yield* page.data;
      if (!page.next_cursor) return;
      query = { ...query, cursor: page.next_cursor };
    }
  }

  private request(call: Call, options: Options): Request {
    const url = new URL(this.base + call.path);
    for (const [name, value] of Object.entries({ ...call.query, sign: call.offline ? "offline" : undefined })) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    const headers = new Headers({ Authorization: `Bearer ${this.key}`, "User-Agent": `agent-vault-client/${VERSION} typescript` });
    if (options.ifMatch !== undefined) headers.set("If-Match", options.ifMatch);
    if (this.session !== undefined && call.method !== "GET") headers.set("Session-Token", this.session);
    const body = call.body && Object.keys(call.body).length > 0 ? JSON.stringify(call.body) : null;
    if (body !== null) headers.set("Content-Type", "application/json");
    // A redirection could lead the credentials to another host.
    return new Request(url, { method: call.method, headers, body, redirect: "manual" });
  }

  private async attempt<T extends object>(request: Request, ends: number): Promise<{ headers: Headers; found: T }> {
    try {
      const seconds = Math.min(Math.max(0.001, ends - now()), ATTEMPT);
      const signal = AbortSignal.timeout(Math.ceil(seconds * 1000));
      const response = await (this.settings.fetch ?? fetch)(request.clone(), { signal });
      return read<T>(response, await response.text());
    } catch (error) {
      if (error instanceof VaultError) throw error;
      const reason = error instanceof Error ? (error.cause ?? error) : error;
      throw new Unreachable(`The service cannot be reached or closed the connection: ${reason}.`, { cause: error });
    }
  }

  /** Return the key of a change: the caller's, the order's stored one, or a new one. */
  private async claimed(call: Call, { order, idempotencyKey }: Options, created_at: number): Promise<StoredKey> {
    const body = (call.body ?? {}) as Record<string, unknown>;
    const fact = (...names: string[]): string => String(names.map((name) => body[name]).find((one) => one !== undefined) ?? "");
    const facts = { wallet_id: fact("walletId", "fromWallet"), payee: fact("to", "toWallet", "url", "destination") };
    const amount = fact("amount", "maxAmount");
    const fresh = { order: order ?? "", key: idempotencyKey ?? crypto.randomUUID(), created_at, ...facts, amount };
    return order === undefined ? fresh : this.settings.store!.claim(fresh);
  }
}

/** Return true if the call should be repeated: its payment is pending, and no resource was received for it. */
function unsettled(answer: object): boolean {
  const { status, payment, resource } = answer as { status?: string } & Record<string, { status: unknown } | null | undefined>;
  const shown = Number(resource?.status ?? 0);
  return (payment === undefined ? status : payment?.status) === "pending" && !(shown >= 200 && shown < 300);
}

/** Return true if another attempt may succeed. The attempt has no second effect, because it has the same key. */
function passing(error: VaultError, attempts: number): boolean {
  const { status, code } = error;
  if (error instanceof InvalidAnswer || status === 500) return attempts < FEW && !(status >= 300 && status < 500);
  if (error instanceof Unreachable || code === "idempotency_in_progress") return true;
  return [408, 429, 502, 503, 504].includes(status) && !["sol_limit_reached", "authority_offline"].includes(code);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function read<T extends object>({ ok, status, headers }: Response, text: string): { headers: Headers; found: T } {
  const found = parsed(text);
  if (ok && isObject(found)) return { headers, found: found as T };
  const fields = isObject(found) ? found["error"] : undefined;
  let error: VaultError;
  if (isObject(fields) && status >= 400) {
    const [code = "", message = "", remedy = ""] = ["code", "message", "remedy"].map((name) => String(fields[name] ?? ""));
    error = failure(message, { code, remedy, status, fields });
  } else {
    const message = `This response is not from the service (status ${status}): ${JSON.stringify(text.slice(0, 80))}`;
    error = [429, 502, 503, 504].includes(status) ? failure(message, { status }) : new InvalidAnswer(message, { status });
  }
  const wait = headers.get("Retry-After");
  error.retryAfter = wait !== null && /^\d+$/.test(wait) ? Number(wait) : undefined;
  throw error;
}

export class Resource {
  constructor(protected readonly core: Core) {}
}
