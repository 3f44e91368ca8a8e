"""What makes two requests the same, and what a new one that moves money has to pass first."""

from functools import partial

from pydantic import BaseModel

from app.access.keyring import Principal
from app.api.money_body import MoneyBody
from app.submission.claim import Claim, Fingerprint, body_hash
from app.submission.context import Service
from app.submission.database_guard import DatabaseGuard

#: Fields in which repetitions of a request may differ.
_NOT_COMPARED = {"idempotency_key", "after_restore"}
#: Newer fields, compared only if they are set: a request sent before an upgrade is still recognised after it.
_COMPARED_IF_SET = {"allow_unverified_recipient"}


def fingerprint(  # noqa: PLR0917
    by: Principal, key: str, method: str, path: str, arguments: BaseModel | None, sealed_for: str | None = None
) -> Fingerprint:
    """Return what identifies a request under its idempotency key."""
    given = {} if arguments is None else arguments.model_dump(exclude=_NOT_COMPARED)
    given = {name: value for name, value in given.items() if value or name not in _COMPARED_IF_SET}
    scope = by.wallet_id or (by.key_id if by.role == "viewer" else "")
    return Fingerprint(by.org, key, method, path, body_hash(given, by.wallet_id), sealed_for, scope)


def check_database_guard(service: Service, claim: Claim, org: str, arguments: BaseModel | None) -> None:
    """Refuse a movement of money that may have been forgotten by a restore or a failover, now and before it is sent.

    Raises ``restore_catching_up`` and ``restore_unacknowledged``.
    """
    if not isinstance(arguments, MoneyBody):
        return
    claim.admit = partial(service.part(DatabaseGuard).admit, org, acknowledged=arguments.after_restore)
    if claim.attempt is None:
        # Before anything is looked up: what is refused must not depend on what was forgotten.
        claim.admit()
