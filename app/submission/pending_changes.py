"""Keeps an older, still pending change from undoing a newer one.

If a request ends without a response from the chain, its change can land until the blockhash expires. If a newer change
were completed before that, the older one could undo it: it could lift an emergency freeze, or replace a session token
that was already handed out. Two rules prevent this:

* Only the request itself, repeated under its idempotency key, resends such a change; recovery does not. There are two
  exceptions: a newer token rotation resends the older rotation and then replaces its token, and a freeze or pause is
  resent while its brake is engaged.
* A newer change that the old change could undo is refused with `chain_unavailable` until the old change has landed or
  expired.

Sending the old change first and then the new one would be faster, but would unfreeze a wallet between the two.
"""

from collections.abc import Callable, Collection

from app.core.errors import UnavailableError
from app.store.attempts import Attempt, pending_changes
from app.submission.claim import Claim
from app.submission.context import Service


async def require_no_pending_change(
    service: Service,
    org: str,
    types: Collection[str],
    *,
    wallet_id: str | None = None,
    where: Callable[[Attempt], bool] = lambda _attempt: True,
) -> None:
    """Return if no earlier change of these types can still land. Call this under the lock of the changed object.

    Raises ``chain_unavailable`` if a change that ``where`` selects can still land.
    """
    for attempt in await service.db.read(lambda conn: pending_changes(conn, org, types, wallet_id)):
        if where(attempt):
            await _wait_for(service, attempt)


async def _wait_for(service: Service, attempt: Attempt) -> None:
    submitter = service.submitter
    outcome = await submitter.look(attempt)
    if outcome.status == "pending" and outcome.sendable and submitter.type_of(attempt).superseded:
        outcome = await submitter.wait(await submitter.resend(attempt), Claim(service.db))
    if outcome.status == "pending":
        raise UnavailableError(
            "chain_unavailable",
            "An earlier change was sent to the chain and may still take effect. Retry shortly.",
            fields={"tx_id": attempt.tx_id},
            headers={"Retry-After": "1"},
        )
