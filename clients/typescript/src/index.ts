/** A client of Agent Vault, which lets AI agents pay USDC within limits that a program on the chain enforces. */

export { Admin, Vault } from "./client.js";
export { headersOf, idempotencyKeyOf, type KeyStore, type Options, type Rows, type Settings, type StoredKey, VERSION } from "./core.js";
export { AuthenticationError, BusinessError, ConflictError, DeadlineExceeded, InvalidAnswer } from "./errors.js";
export { NotFoundError, OutcomeUnknown, PolicyViolation, RateLimited, RequestError, SignatureInvalid } from "./errors.js";
export { StoreError, UnavailableError, Unreachable, VaultError } from "./errors.js";
export * from "./operations.js";
export { FolderStore } from "./stores.js";
export { verifyWebhook, type WebhookEvent } from "./webhooks.js";
