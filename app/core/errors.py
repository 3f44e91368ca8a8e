"""The errors of the API: an exception class for each family of codes, and the envelope of all error responses."""

import errno
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.error_catalogue import KINDS, ErrorKind

#: Every code that a response may contain.
CATALOGUE: Mapping[str, ErrorKind] = {kind.code: kind for kind in KINDS}


_STORAGE_CODES = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
    }
)
#: PostgreSQL's error classes: connection, authorization, database name, resources, operator intervention, system.
_STORAGE_CLASSES = ("08", "28", "3D", "53", "57", "58")
#: PostgreSQL's error codes: idle transaction ended, lock not available, serialization failure, deadlock, read-only
#: server, missing privilege, and a prepared statement that is missing or exists already.
_STORAGE_STATES = frozenset({"25P03", "55P03", "40001", "40P01", "25006", "42501", "26000", "42P05"})
_STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
#: Seconds until a client should retry, if a part of the service is unavailable.
RETRY_AFTER = "1"


class ApiError(Exception):
    """An error from the catalogue. Code at any depth below a route may raise it.

    ``fields`` are additional members of the ``error`` object, ``headers`` additional response headers.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = CATALOGUE[code]
        self.code = code
        self.status = kind.status
        self.message = message or kind.meaning
        self.fields = dict(fields or {})
        again = {"Retry-After": RETRY_AFTER} if kind.status == 503 and code != "authority_offline" else {}
        self.headers = {**again, **(headers or {})}
        super().__init__(self.message)

    def envelope(self, *, docs: str, request_id: str) -> dict[str, Any]:
        """Return the response body: ``{"error": {code, message, docs, request_id, ...}}``."""
        shared = {"code": self.code, "message": self.message, "docs": docs, "request_id": request_id}
        return {"error": shared | self.fields}


class RequestError(ApiError):
    """The request is wrong or exceeds a limit (400, 403 for a host, 404 for a path, 405, 408, 413, 416, 429)."""


class AuthenticationError(ApiError):
    """The caller is unknown or lacks permission (401, 403)."""


class NotFoundError(ApiError):
    """The organisation does not have the requested object (404)."""


class ConflictError(ApiError):
    """The request conflicts with an earlier or concurrent one, or may repeat a lost request (409)."""


class BusinessError(ApiError):
    """The request is valid, but the current state does not allow it (422; in some forms of the dashboard 400)."""


class UnavailableError(ApiError):
    """A part of the service that the request needs is unavailable (503).

    The response has ``Retry-After``, except for ``authority_offline``: waiting does not bring back the authority's key.
    """


class OutdatedError(UnavailableError):
    """A simulation lacks an account, possibly because another request has ended the object (503).

    It is raised before the request has an effect. The request then runs again with read models that have caught up with
    the chain. If the object has ended, this second run raises the error for an ended object.
    """


class StorageUnavailableError(UnavailableError):
    """The service's database cannot be written to or read now (503 ``storage_unavailable``).

    The response does not state the cause. ``str()`` of the error adds the database's own message, for logs.
    """

    def __init__(self) -> None:
        super().__init__("storage_unavailable")

    def __str__(self) -> str:
        cause = getattr(self.__cause__, "orig", None) or self.__cause__
        reason = next(iter(str(cause or "").splitlines()), "")
        return f"{self.message} ({reason})" if reason else self.message


class StorageDoubtError(StorageUnavailableError):
    """The connection was lost or a timeout passed during a commit, so the outcome of the commit is unknown.

    A replay finds the outcome: the same commit also stores the request's idempotency claim.
    """


def is_storage_error(error: BaseException) -> bool:
    """Return True if an error means that the database cannot be used now, for example because the disk is full."""
    if isinstance(error, UnavailableError):
        return error.code == "storage_unavailable"
    if getattr(error, "connection_invalidated", False):
        return True
    # SQLAlchemy keeps the driver's error in `orig`.
    error = getattr(error, "orig", None) or error
    if isinstance(error, sqlite3.Error):
        # The lower byte is the primary code.
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in _STORAGE_CODES
    if hasattr(error, "sqlstate"):
        return _is_outage(error)
    return isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS


def _is_outage(error: BaseException) -> bool:
    """Return True if a psycopg error means that the database is unavailable.

    psycopg is optional, so this module does not import it.
    """
    state: str | None = error.sqlstate  # type: ignore[attr-defined]
    if state is None:
        # Without a state, the server sent no message: the connection was lost or never established.
        return any(one.__name__ in {"OperationalError", "InterfaceError"} for one in type(error).__mro__)
    return state[:2] in _STORAGE_CLASSES or state in _STORAGE_STATES


class PolicyViolationError(ApiError):
    """The wallet's policy or budget refuses the payment, escrow or allowance (402).

    ``tx_id`` is the id of the refused expense's row. ``approval_id`` is the id of the approval that would let the
    expense pass, if there is one. ``remedy`` is appended to the message. ``open_allowances`` are the ids of outstanding
    allowances, if the expense would pass without the money that they hold.
    """

    def __init__(
        self,
        *,
        violation: Mapping[str, str],
        wallet_id: str,
        policy_id: str,
        tx_id: str,
        approval_id: str | None = None,
        remedy: str | None = None,
        open_allowances: Sequence[str] = (),
    ) -> None:
        fields: dict[str, Any] = {
            "violation": dict(violation),
            "wallet_id": wallet_id,
            "policy_id": policy_id,
            "tx_id": tx_id,
        }
        if approval_id is not None:
            fields["approval_id"] = approval_id
        if open_allowances:
            fields["open_allowances"] = list(open_allowances)
        message = violation_sentence(violation)
        super().__init__("policy_violation", message if remedy is None else f"{message} {remedy}", fields=fields)


def violation_sentence(violation: Mapping[str, Any]) -> str:
    """Return a sentence with the rule that refuses a payment, the rule's limit, and the attempted value."""
    # The names of a budget's rules begin with `budget_`.
    whose = "budget" if violation["rule"].startswith("budget_") else "policy"
    level = violation.get("budget_id")
    rule = f"{whose}'s rule {violation['rule']}" if level is None else f"rule {violation['rule']} of the budget {level}"
    return f"The {rule} refuses this payment: limit {violation['limit']}, attempted {violation['attempted']}."
