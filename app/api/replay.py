"""The fingerprint that identifies replays, and the check of new requests that move money."""

from functools import partial

from pydantic import BaseModel

from app.access.credentials import require_in_force
from app.access.keyring import Principal
from app.api.money_body import MoneyBody
from app.submission.claim import Claim, Fingerprint, body_hash
from app.submission.context import Service
from app.submission.database_guard import DatabaseGuard

#: Fields that may differ between a request and its replay.
_NOT_COMPARED = {"idempotency_key", "after_restore"}
#: Fields added by later versions. They are compared only if set, so that a request sent before an upgrade is still
#: recognised afterwards.
_COMPARED_IF_SET = {"allow_unverified_recipient"}

#: Fields of bodies that engage or lift a brake.
BRAKING_FIELDS = {"status", "paused"}


def fingerprint(  # noqa: PLR0917
    by: Principal, key: str, method: str, path: str, arguments: BaseModel | None, sealed_for: str | None = None
) -> Fingerprint:
    """Return the fingerprint of a request under its idempotency key."""
    given = {} if arguments is None else arguments.model_dump(exclude=_NOT_COMPARED)
    given = {name: value for name, value in given.items() if value or name not in _COMPARED_IF_SET}
    scope = by.wallet_id or (by.key_id if by.role == "viewer" else "")
    return Fingerprint(by.org, key, method, path, body_hash(given, by.wallet_id), sealed_for, scope)


def prepare(service: Service, claim: Claim, by: Principal, arguments: BaseModel | None) -> None:
    """Make the claim's changes fail once the caller's credential has ended, and check the database guard.

    After a restore or failover, the database may lack the record of an earlier copy of this request. The guard then
    refuses requests that move money. The check runs now, unless the request resumes an earlier attempt, and again
    before a new transaction is sent. Raises ``restore_catching_up`` while the service still reads later transactions
    from the chain, and ``restore_unacknowledged`` if the request lacks the client's confirmation.
    """
    claim.authorise = partial(require_in_force, by=by)
    if not isinstance(arguments, MoneyBody):
        return
    claim.admit = partial(service.part(DatabaseGuard).admit, by.org, acknowledged=arguments.after_restore)
    if claim.attempt is None:
        # Checked before any lookup, because the refusal must not depend on lost records.
        claim.admit()
