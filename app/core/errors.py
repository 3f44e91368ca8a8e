"""Every error that the service answers: one catalogue, one typed exception per family, one envelope."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What a code means, the HTTP status it answers with and what a client can do about it."""

    code: str
    status: int
    area: str
    meaning: str
    remedy: str


_KINDS = (
    ErrorKind(
        "invalid_request",
        400,
        "Requests",
        "The request is malformed: not JSON, a missing or unknown field, a wrong type or value, a bad cursor.",
        "Read the message: it names the field. Field names are accepted in camelCase and in snake_case.",
    ),
    ErrorKind(
        "not_found",
        404,
        "Requests",
        "There is nothing at this path, or no object with this id in the organisation.",
        "Check the path and the id.",
    ),
    ErrorKind(
        "method_not_allowed",
        405,
        "Requests",
        "The path exists, but not with this HTTP method.",
        "The `Allow` header lists the methods that the path answers.",
    ),
    ErrorKind(
        "request_too_large",
        413,
        "Requests",
        "The request body is larger than the service accepts.",
        "Send a smaller body. The limit is 65,536 bytes unless the operator of the service has set another.",
    ),
    ErrorKind(
        "request_timeout",
        408,
        "Requests",
        "The request body did not arrive in time.",
        "Send the request again, with the same idempotency key.",
    ),
    ErrorKind(
        "rate_limited",
        429,
        "Requests",
        "The API key made too many requests, or too many requests without a valid key came from the address; or the "
        "organisation has as many previews or test deliveries under way as it may.",
        "Wait for the seconds that `Retry-After` names. `RateLimit-Policy` tells how many requests (`q`) any window of "
        "`w` seconds may hold, `RateLimit` how many remain (`r`) and in how many seconds one more does (`t`).",
    ),
    ErrorKind(
        "internal_error",
        500,
        "Requests",
        "The service failed in a way it did not foresee. Nothing about the failure is shown.",
        "Quote the `request_id` to the operator of the service. Repeat the request with the same idempotency key.",
    ),
    ErrorKind(
        "authentication_failed",
        401,
        "Authentication",
        "The API key is missing, malformed, unknown or revoked.",
        "Send `Authorization: Bearer <API key>`.",
    ),
    ErrorKind(
        "insufficient_permissions",
        403,
        "Authentication",
        "The API key is valid, but its role may not do this, or it is bound to another wallet.",
        "Use a key with one of the roles that the operation names.",
    ),
    ErrorKind(
        "key_not_found",
        404,
        "Authentication",
        "The organisation has no API key with this id.",
        "List the keys with `GET /v1/keys`. The id begins with `key_`; it is not the key itself.",
    ),
    ErrorKind(
        "key_not_active",
        422,
        "Authentication",
        "The API key was revoked or rotated already.",
        "Rotate the key that took its place, or create a new one with `POST /v1/keys`.",
    ),
    ErrorKind(
        "session_token_expired",
        401,
        "Authentication",
        "The session token matches the wallet, but its time is over.",
        "Issue a new one with `POST /v1/wallets/{wallet_id}/rotate-token`.",
    ),
    ErrorKind(
        "session_token_invalid",
        401,
        "Authentication",
        "The session token is missing where it is needed, malformed, or not the wallet's current one.",
        "Send the token of the last `rotate-token` answer in the header `Session-Token`.",
    ),
    ErrorKind(
        "wallet_not_found",
        404,
        "Wallets",
        "The organisation has no wallet with this id.",
        "Check the id, and that the API key belongs to the wallet's organisation.",
    ),
    ErrorKind(
        "wallet_frozen",
        422,
        "Wallets",
        "The wallet is frozen and makes no payments.",
        "Unfreeze it with `PATCH /v1/wallets/{wallet_id}`, `status` = `active`; after an expiry attach "
        "another policy first, or extend the `expiry`.",
    ),
    ErrorKind(
        "wallet_archived",
        422,
        "Wallets",
        "The wallet was archived. It makes no payments and does not come back.",
        "Create a new wallet with another agent id.",
    ),
    ErrorKind(
        "wallet_not_empty",
        422,
        "Wallets",
        "A wallet that still holds USDC or open escrows cannot be archived.",
        "Withdraw the balance first.",
    ),
    ErrorKind(
        "wallet_insufficient_balance",
        422,
        "Wallets",
        "The wallet holds less USDC than the payment needs.",
        "Fund the wallet and send the payment again.",
    ),
    ErrorKind(
        "wallet_agent_id_conflict",
        409,
        "Wallets",
        "The organisation already has, or once had, a wallet for this agent id.",
        "Use the existing wallet, or another agent id.",
    ),
    ErrorKind(
        "policy_violation",
        402,
        "Payments",
        "The wallet's policy refuses this payment. Nothing was sent to the chain.",
        "Read `violation`: the rule, its limit and what the payment would have made of it. Where there is an "
        "`approval_id`, send the payment again once an operator has approved it.",
    ),
    ErrorKind(
        "approval_not_found",
        404,
        "Payments",
        "The organisation has no approval with this id.",
        "List the approvals with `GET /v1/approvals`.",
    ),
    ErrorKind(
        "approval_not_pending",
        422,
        "Payments",
        "The approval can no longer be decided: it was rejected, used, or its time is over.",
        "Send the payment again: a refusal by `require_co_sign` asks for a new approval.",
    ),
    ErrorKind(
        "approval_outdated",
        422,
        "Payments",
        "The wallet's policy is not the one, or not in the version, under which the approval was asked for.",
        "Send the payment again: if the policy of now refuses it by `require_co_sign`, that asks for a new approval.",
    ),
    ErrorKind(
        "invalid_recipient",
        400,
        "Payments",
        "The recipient is neither a chain address, nor a wallet, nor a domain that resolves to an address.",
        "Give the owner's address (not a token account), a wallet id, or a domain that names its address.",
    ),
    ErrorKind(
        "invalid_amount",
        400,
        "Payments",
        "The amount is not a decimal string above zero with at most 6 decimals and below 2^64 micro-USDC.",
        'Send amounts as strings, as in `"amount": "12.50"`.',
    ),
    ErrorKind(
        "idempotency_conflict",
        409,
        "Payments",
        "The idempotency key was already used for a request with other parameters.",
        "Use a new key for a new request; repeat the very same request to get its first answer.",
    ),
    ErrorKind(
        "idempotency_in_progress",
        409,
        "Payments",
        "A request with this idempotency key is still being worked on, or its outcome is not yet known.",
        "Repeat the same request a little later.",
    ),
    ErrorKind(
        "transaction_not_found",
        404,
        "Payments",
        "The organisation has no transaction with this id.",
        "Check the id.",
    ),
    ErrorKind(
        "export_not_found",
        404,
        "Exports",
        "The organisation has no export with this id, or its file is no longer kept.",
        "Check the id. Files are kept until `expires_at`; ask for a new export with `POST /v1/transactions/export`.",
    ),
    ErrorKind(
        "download_link_invalid",
        403,
        "Exports",
        "The link was not made by this service, or its time is over.",
        "Get a new `download_url` with `GET /v1/transactions/exports/{export_id}`.",
    ),
    ErrorKind(
        "too_many_exports",
        422,
        "Exports",
        "The organisation has as many exports, unfinished or not expired, as it may.",
        "Wait until one of them is ready, or for the seconds that `Retry-After` names.",
    ),
    ErrorKind(
        "transaction_failed",
        422,
        "Payments",
        "The chain refused the transaction, or it expired before it landed. Nothing was moved.",
        "Read the message and send the request again.",
    ),
    ErrorKind(
        "recipient_not_found",
        404,
        "Payments",
        "Nothing is registered for this address or domain.",
        "Register it with `PUT /v1/recipients/{recipient}`.",
    ),
    ErrorKind(
        "policy_not_found",
        404,
        "Policies",
        "The organisation has no policy with this id.",
        "List the policies with `GET /v1/policies`.",
    ),
    ErrorKind(
        "policy_immutable",
        422,
        "Policies",
        "Preset policies cannot be changed.",
        "Copy it with `POST /v1/policies/{policy_id}/clone` and change the copy.",
    ),
    ErrorKind(
        "policy_in_use",
        422,
        "Policies",
        "Wallets are still attached to the policy.",
        "Attach them to another policy first.",
    ),
    ErrorKind(
        "version_conflict",
        409,
        "Policies",
        "The policy is not in the version that `If-Match` names, or others keep changing it at the same time.",
        "Read the policy again, see whether the change still makes sense, and send it with the new `ETag`.",
    ),
    ErrorKind(
        "org_insufficient_balance",
        422,
        "Funding",
        "The organisation's reserve holds less USDC than the allocation.",
        "Deposit USDC into the reserve.",
    ),
    ErrorKind(
        "org_paused",
        422,
        "Funding",
        "The organisation is paused: no payments and no funding. Withdrawals stay possible.",
        "The organisation's authority ends the pause.",
    ),
    ErrorKind(
        "operator_limit_exceeded",
        422,
        "Funding",
        "The funding would exceed what the operator may move out of the reserve in 24 hours.",
        "Wait, or let the organisation's authority raise the limit.",
    ),
    ErrorKind(
        "withdrawal_exceeds_balance",
        422,
        "Funding",
        "The withdrawal is larger than the balance.",
        'Withdraw less, or `"amount": "all"`.',
    ),
    ErrorKind(
        "escrow_not_found",
        404,
        "Escrow",
        "The organisation has no escrow with this id.",
        "List the escrows with `GET /v1/payments/a2a`.",
    ),
    ErrorKind(
        "escrow_expired",
        422,
        "Escrow",
        "The escrow's deadline has passed. What it holds goes back to the requesting wallet.",
        "Create a new escrow, with a longer `timeoutSeconds` where the task needs it.",
    ),
    ErrorKind(
        "escrow_already_settled",
        422,
        "Escrow",
        "The escrow was released, refunded or split already, or it is disputed and waits for the arbiter.",
        "Read its `status` with `GET /v1/payments/a2a/{escrow_id}`.",
    ),
    ErrorKind(
        "escrow_not_disputed",
        422,
        "Escrow",
        "The escrow is not disputed, so there is nothing to decide.",
        "A party raises a dispute with `POST /v1/payments/a2a/{escrow_id}/dispute`, before the deadline.",
    ),
    ErrorKind(
        "too_many_escrows",
        422,
        "Escrow",
        "The wallet has as many open escrows as a wallet may.",
        "Wait until one of them is settled.",
    ),
    ErrorKind(
        "invalid_proof",
        422,
        "Escrow",
        "The proof is malformed, not of a kind that the escrow accepts, or not for this escrow and its output.",
        "Read the message. A signed proof is over this escrow's address, its task's hash and the output's hash.",
    ),
    ErrorKind(
        "webhook_not_found",
        404,
        "Webhooks",
        "The organisation has no webhook with this id.",
        "List the webhooks with `GET /v1/webhooks`.",
    ),
    ErrorKind(
        "delivery_not_found",
        404,
        "Webhooks",
        "The webhook has no delivery with this id. What is 90 days old is forgotten.",
        "List the deliveries with `GET /v1/webhooks/{webhook_id}/deliveries`.",
    ),
    ErrorKind(
        "too_many_webhooks",
        422,
        "Webhooks",
        "The organisation has as many webhooks as it may.",
        "Delete one that is not needed, or change its URL and events.",
    ),
    ErrorKind(
        "chain_unavailable",
        503,
        "Service",
        "The chain does not answer. Nothing was lost: a payment that was already signed is settled when it comes back.",
        "Repeat the request with the same idempotency key.",
    ),
    ErrorKind(
        "not_ready",
        503,
        "Service",
        "A part that requests need does not work now; `reasons` names it: `chain`, `database` or `indexer`.",
        "Send requests to another node, or wait. `chain` does not answer, `database` cannot be written, `indexer` is "
        "behind the chain.",
    ),
    ErrorKind(
        "authority_offline",
        503,
        "Service",
        "The service runs without the organisation's authority key, or the arbiter's: policies are written, freezes "
        "lifted and disputes decided elsewhere.",
        "Sign the change with that key, away from this service.",
    ),
)

#: Every code that an answer may carry.
CATALOGUE: Mapping[str, ErrorKind] = {kind.code: kind for kind in _KINDS}


class ApiError(Exception):
    """An error with a place in the catalogue; raise it anywhere below a route.

    ``fields`` are further members of the ``error`` object, ``headers`` further response headers.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = CATALOGUE[code]
        self.message = message or self.kind.meaning
        self.fields = dict(fields or {})
        self.headers = dict(headers or {})
        super().__init__(self.message)

    @property
    def code(self) -> str:
        """The catalogue's code."""
        return self.kind.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    def envelope(self, *, docs: str, request_id: str) -> dict[str, Any]:
        """Answer's body: ``{"error": {code, message, docs, request_id, ...}}``."""
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                "docs": docs,
                "request_id": request_id,
                **self.fields,
            }
        }


class RequestError(ApiError):
    """The request itself is wrong, or one too many (400, 404 of a path, 405, 408, 413, 429)."""


class AuthenticationError(ApiError):
    """Who asks is unknown, or may not (401, 403)."""


class NotFoundError(ApiError):
    """The organisation has no such object (404)."""


class ConflictError(ApiError):
    """The request collides with an earlier one (409)."""


class BusinessError(ApiError):
    """A valid request that the state of things prevents (422)."""


class UnavailableError(ApiError):
    """A part that the request needs is not there now (503)."""


class PolicyViolationError(ApiError):
    """The wallet's policy refuses (402); carries the violation, the wallet and the policy.

    ``approval_id`` is that of the approval with which the payment would pass.
    """

    def __init__(
        self, *, violation: Mapping[str, str], wallet_id: str, policy_id: str, approval_id: str | None = None
    ) -> None:
        fields: dict[str, Any] = {"violation": dict(violation), "wallet_id": wallet_id, "policy_id": policy_id}
        if approval_id is not None:
            fields["approval_id"] = approval_id
        super().__init__(
            "policy_violation",
            f"The policy refuses this payment by its rule {violation['rule']}: "
            f"limit {violation['limit']}, attempted {violation['attempted']}.",
            fields=fields,
        )
