"""Keeps an older, still pending change from undoing a newer one.

A change whose request ended without the chain's answer can land until its blockhash expires. If a newer change were
answered meanwhile, the old one could undo it: lift an emergency freeze, or replace a token already handed out. So

* only the request itself, repeated under its idempotency key, sends such a change again; recovery does not;
* a newer change that it could undo is refused with `chain_unavailable` until the old one has landed or expired.

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
    """Return if no earlier change of these types can still land; call it under the lock of what is changed.

    Raises ``chain_unavailable`` if one that ``where`` selects still can.
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
            "An earlier change was sent to the chain and may still take effect. Repeat the request a little later.",
            fields={"tx_id": attempt.tx_id},
            headers={"Retry-After": "1"},
        )
