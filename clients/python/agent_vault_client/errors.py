"""The error classes: one for each family of the service's error catalogue, and some for errors of the client itself."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from agent_vault_client._catalogue import REMEDIES

FAMILIES: dict[int, type["VaultError"]] = {}
"""The error class of each HTTP status."""


class VaultError(Exception):
    """Any error of this package.

    `code` is the service's code, which may be newer than this package. `remedy` is the next step, `fields` holds all
    members of the error, and `status` is 0 without a response. `idempotency_key` is the key of the call, if it was a
    change: a repetition of the same call with this key has no second effect.
    """

    idempotency_key: str | None = None

    def __init_subclass__(cls, statuses: Iterable[int] = ()) -> None:
        FAMILIES.update(dict.fromkeys(statuses, cls))

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        remedy: str = "",
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.message, self.code, self.status = message, code, status
        self.fields = dict(fields or {})
        self.remedy = remedy or REMEDIES.get(code, "")
        self.request_id, self.docs = (_text(self.fields, name) for name in ("request_id", "docs"))
        self.retry_after: float | None = None
        super().__init__(" ".join(filter(None, (code and f"{code}:", message, self.remedy))))


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


class RequestError(VaultError):
    """The request is malformed, too large or too slow (400, 405, 408, 413, 416)."""


class RateLimited(RequestError, statuses={429}):
    """Too many requests were sent, or the day's limit of SOL is used up (429).

    `retry_after` is the number of seconds to wait, or None if the service does not state it.
    """


class AuthenticationError(VaultError, statuses={401, 403}):
    """The key or session token is not accepted, or does not permit the request (401, 403)."""


class NotFoundError(VaultError, statuses={404}):
    """The organisation has no such object (404)."""


class ConflictError(VaultError, statuses={409}):
    """The request conflicts with another one, or may repeat a request whose record was lost (409)."""


class BusinessError(VaultError, statuses={422}):
    """The current state does not allow the request (422)."""


class UnavailableError(VaultError):
    """The service or a part of it is unavailable, and the deadline left no time for another attempt (5xx).

    A change may have been made. Repeat it with the same `order` or `idempotency_key`, so that it has no second effect.
    """


class PolicyViolation(VaultError, statuses={402}):
    """The policy or the budget refuses the payment (402). No money has moved.

    `rule` is the broken rule, `limit` its limit, and `attempted` the value that the payment would have reached. The
    same payment would pass from `retry_at` on, if nothing else is paid before. `retry_at` is None if no such time is
    known.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        violation = self.fields.get("violation")
        facts = violation if isinstance(violation, dict) else {}
        self.rule, self.limit, self.attempted = (_text(facts, name) for name in ("rule", "limit", "attempted"))
        self.retry_at = _text(self.fields, "retry_at") or _text(facts, "retry_at")
        self.approval_id, self.tx_id = (_text(self.fields, name) for name in ("approval_id", "tx_id"))


class InvalidAnswer(VaultError):
    """The response is incomplete or not the service's, such as a proxy's HTML page. `message` shows its beginning.

    A change may have been made. Repeat it with the same `order` or `idempotency_key`, so that it has no second effect.
    """


class Unreachable(VaultError):
    """The connection failed or was closed. A change may have been made.

    Repeat it with the same `order` or `idempotency_key`, so that it has no second effect.
    """


class DeadlineExceeded(VaultError):
    """The call's deadline passed before a definite answer. `last` is the last error.

    A change may have been made. Repeat it with the same `order` or `idempotency_key`, so that it has no second effect.
    """

    def __init__(self, seconds: float, last: VaultError | None, *, keyed: bool) -> None:
        again = f"Repeat the call{' with the same order or idempotency_key within 23 hours' if keyed else ''}."
        cause = f" The last error was: {last.message}" if last else ""
        super().__init__(f"No definite answer within {seconds:g} seconds.{cause}", remedy=again)
        self.last = last


class OutcomeUnknown(VaultError):
    """The key of the change is too old to be sent again: the service forgets keys after 24 hours.

    An earlier attempt may have made the change, or was refused. Look for the payment of `amount` from `wallet_id` to
    `payee`, first tried at `time`, in `transactions.list`. `order` is empty without a store.
    """

    def __init__(self, key: Any) -> None:
        self.order, self.wallet_id, self.payee, self.amount = key.order, key.wallet_id, key.payee, key.amount
        self.time = datetime.fromtimestamp(key.created_at, UTC)
        super().__init__(
            f"Order {self.order or key.key!r} of {self.amount or 'an unknown amount'} from "
            f"{self.wallet_id or 'the wallet'} to {self.payee or 'the payee'} was first tried at "
            f"{self.time.isoformat()}. Its idempotency key is too old, so the request was not sent again.",
            remedy="Check the transactions. If the payment is missing, blocked or failed, pay under a new order id.",
        )


class StoreError(VaultError):
    """The store of keys cannot be written or read, so nothing was sent."""


class SignatureInvalid(VaultError):
    """A webhook's request lacks a valid signature, or its time differs too much from this machine's clock."""


def family(status: int) -> type[VaultError]:
    """Return the error class of an HTTP status. The class also covers error codes that this package does not know."""
    return FAMILIES.get(status, UnavailableError if status >= 500 else RequestError)
