"""Changes that a later one must not lose to: an earlier one that may still land comes first, or there is no later one.

A change whose request ended without the chain's answer can land as long as its blockhash lives. Were a newer one
answered meanwhile, the old one could undo it: lift an emergency freeze, replace a token that was handed out. So

* only the request itself, repeated under its idempotency key, sends such a change again; settlement just looks;
* a newer change that it could undo is refused with `chain_unavailable` until the old one has landed or expired.

To send the old one on purpose, and the new one after it, would settle sooner, but open a frozen wallet for the time
between the two. Only an earlier rotation is sent on: its token is lost and the new one replaces it either way.
"""

from collections.abc import Collection, Mapping

from app.core.errors import UnavailableError
from app.store.attempts import Attempt, pending_changes
from app.submission.context import Service
from app.submission.idempotency import Ticket

_STATE = frozenset({"update_wallet", "freeze_wallet", "unfreeze_wallet", "close_wallet"})
_APPROVAL = frozenset({"approve_payment", "close_approval"})

#: By type of the change: those whose landing after it would undo it. A freeze, which may be urgent, waits for the
#: least: neither another freeze nor another policy lifts it.
_WAITS_FOR: Mapping[str, frozenset[str]] = {
    "update_wallet": _STATE,
    "unfreeze_wallet": _STATE,
    "close_wallet": _STATE,
    "freeze_wallet": frozenset({"unfreeze_wallet"}),
    "rotate_token": frozenset({"rotate_token"}),
    "register_recipient": frozenset({"register_recipient"}),
    "approve_payment": _APPROVAL,
    "close_approval": _APPROVAL,
    # The next escrow would be made at the same address.
    "escrow_lock": frozenset({"escrow_lock"}),
}


async def settle_earlier(
    service: Service, org: str, change: str, *, wallet_id: str | None = None, recipients: Collection[str] = ()
) -> None:
    """Return when no earlier change can land after one of this type; to be called under the lock of the changed thing.

    Registrations are told apart by the addresses and domains in ``recipients``, approvals by their id there. Raises
    ``chain_unavailable`` while an earlier change can still land.
    """
    for attempt in await service.db.read(lambda conn: pending_changes(conn, org, _WAITS_FOR[change], wallet_id)):
        if recipients and not {attempt.recipient, attempt.recipient_address} & set(recipients):
            continue
        await settle(service, attempt)


async def settle(service: Service, attempt: Attempt) -> None:
    """Return when an earlier change can land no more, or did. Raises ``chain_unavailable`` while it still can."""
    submitter = service.submitter
    outcome = await submitter.look(attempt)
    if outcome.status == "pending" and outcome.sendable and attempt.type == "rotate_token":
        outcome = await submitter.wait(await submitter.resend(attempt), Ticket(None))
    if outcome.status == "pending":
        raise UnavailableError(
            "chain_unavailable",
            "An earlier change was sent to the chain and may still take effect. Repeat the request a little later.",
            fields={"tx_id": attempt.tx_id},
            headers={"Retry-After": "1"},
        )
