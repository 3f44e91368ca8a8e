/** The error classes: one for each family of the service's error catalogue, and some for errors of the client itself. */

import { REMEDIES } from "./catalogue.js";
import type { StoredKey } from "./core.js";

export type Details = { code?: string; status?: number; remedy?: string; fields?: Record<string, unknown>; cause?: unknown };

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(fields: Record<string, unknown>, name: string): string | undefined {
  const value = fields[name];
  return typeof value === "string" ? value : undefined;
}

/**
 * Any error of this package. `code` is the service's code, which may be newer than this package. `remedy` is the next
 * step, `fields` holds all members of the error, and `status` is 0 without a response.
 */
export class VaultError extends Error {
  readonly code: string;
  readonly status: number;
  readonly remedy: string;
  readonly fields: Record<string, unknown>;
  readonly requestId: string | undefined;
  readonly docs: string | undefined;
  /** Seconds to wait before the next attempt, if the service states them. */
  retryAfter: number | undefined;
  /** The key of the call, if it was a change: a repetition of the same call with this key has no second effect. */
  idempotencyKey: string | undefined;

  constructor(message: string, { code = "", status = 0, remedy = "", fields = {}, cause }: Details = {}) {
    super(message, { cause });
    this.name = new.target.name;
    this.code = code;
    this.status = status;
    this.fields = fields;
    this.remedy = remedy || (REMEDIES[code] ?? "");
    this.requestId = text(fields, "request_id");
    this.docs = text(fields, "docs");
  }
}

/** The request is malformed, too large or too slow (400, 405, 408, 413, 416). */
export class RequestError extends VaultError {}

/** Too many requests were sent, or the day's limit of SOL is used up (429). */
export class RateLimited extends RequestError {}

/** The key or session token is not accepted, or does not permit the request (401, 403). */
export class AuthenticationError extends VaultError {}

/** The organisation has no such object (404). */
export class NotFoundError extends VaultError {}

/** The request conflicts with another one, or may repeat a request whose record was lost (409). */
export class ConflictError extends VaultError {}

/** The current state does not allow the request (422). */
export class BusinessError extends VaultError {}

/**
 * The service or a part of it is unavailable, and the deadline left no time for another attempt (5xx). A change may have
 * been made. Repeat it with the same `order` or `idempotencyKey`, so that it has no second effect.
 */
export class UnavailableError extends VaultError {}

/**
 * The policy or the budget refuses the payment (402). No money has moved. `attempted` is the value that the payment
 * would have reached. The same payment would pass from `retryAt` on, if nothing else is paid before.
 */
export class PolicyViolation extends VaultError {
  private readonly violation = isObject(this.fields["violation"]) ? this.fields["violation"] : {};
  readonly rule = text(this.violation, "rule");
  readonly limit = text(this.violation, "limit");
  readonly attempted = text(this.violation, "attempted");
  readonly approvalId = text(this.fields, "approval_id");
  readonly txId = text(this.fields, "tx_id");
  retryAt = text(this.fields, "retry_at") ?? text(this.violation, "retry_at");
}

/**
 * The response is incomplete or not the service's, such as a proxy's HTML page. The message shows its beginning. A change
 * may have been made. Repeat it with the same `order` or `idempotencyKey`, so that it has no second effect.
 */
export class InvalidAnswer extends VaultError {}

/**
 * The connection failed or was closed. A change may have been made. Repeat it with the same `order` or `idempotencyKey`,
 * so that it has no second effect.
 */
export class Unreachable extends VaultError {}

/**
 * The call's deadline passed before a definite answer. A change may have been made. Repeat it with the same `order` or
 * `idempotencyKey`, so that it has no second effect. `last` is the last error.
 */
export class DeadlineExceeded extends VaultError {
  constructor(seconds: number, readonly last: VaultError | undefined, key: string | undefined) {
    const remedy = key === undefined ? "Repeat the call." : "Repeat the call with the same order or idempotencyKey within 23 hours.";
    const cause = last ? ` The last error was: ${last.message}` : "";
    super(`No definite answer within ${seconds} seconds.${cause}`, { remedy, cause: last });
    this.idempotencyKey = key;
  }
}

/**
 * The key of the change is too old to be sent again: the service forgets keys after 24 hours. An earlier attempt may have
 * made the change, or was refused. Look for the payment of `amount` from `walletId` to `payee`, first tried at `time`,
 * in `transactions.list`. `order` is empty without a store.
 */
export class OutcomeUnknown extends VaultError {
  readonly order: string;
  readonly walletId: string;
  readonly payee: string;
  readonly amount: string;
  readonly time: Date;

  constructor({ order, key, wallet_id, payee, amount, created_at }: StoredKey, cause?: VaultError) {
    const time = new Date(created_at * 1000);
    const facts = `${amount || "an unknown amount"} from ${wallet_id || "the wallet"} to ${payee || "the payee"}`;
    const start = `Order ${JSON.stringify(order || key)} of ${facts} was first tried at ${time.toISOString()}.`;
    const remedy = "Check the transactions. If the payment is missing, blocked or failed, pay under a new order id.";
    super(`${start} Its idempotency key is too old, so the request was not sent again.`, { remedy, cause });
    [this.order, this.walletId, this.payee, this.amount, this.time] = [order, wallet_id, payee, amount, time];
  }
}

/** The store of keys cannot be written or read, so nothing was sent. */
export class StoreError extends VaultError {}

/** A webhook's request lacks a valid signature, or its time differs too much from this machine's clock. */
export class SignatureInvalid extends VaultError {}

const FAMILIES: readonly [number[], new (message: string, details?: Details) => VaultError][] = [
  [[401, 403], AuthenticationError],
  [[402], PolicyViolation],
  [[404], NotFoundError],
  [[409], ConflictError],
  [[422], BusinessError],
  [[429], RateLimited],
];

/** Return the error of a status. This class also covers error codes of newer services that this package lacks. */
export function failure(message: string, details: Details & { status: number }): VaultError {
  const found = FAMILIES.find(([statuses]) => statuses.includes(details.status))?.[1];
  return new (found ?? (details.status >= 500 ? UnavailableError : RequestError))(message, details);
}
