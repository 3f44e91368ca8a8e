"""Pauses and unpauses organisations. A pause overtakes the waiting payments of all wallets."""

from typing import Any

from app.access.keyring import Principal
from app.core.errors import AuthenticationError, NotFoundError
from app.store.organisations import reserve
from app.submission.brake import EngagedBrake
from app.submission.chain_state import account_state, stale_node_error
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.enforcement import BrakeRefusedError, Enforcement, enforce
from app.submission.locks import LockScope
from app.submission.offline import authority_of, refuse_unneeded_offline
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType

_PAUSE = PlanType("pause_org", resent=False, stops=True)
_UNPAUSE = PlanType("unpause_org", resent=False, waits_for=frozenset({"pause_org", "unpause_org"}), lifts="pause")
PLAN_TYPES = (_PAUSE, _UNPAUSE)


async def set_paused(service: Service, principal: Principal, claim: Claim, *, paused: bool) -> None:
    """Pause or unpause the organisation. Operators may pause; unpausing needs an admin and the authority's signature.

    A pause stops payments by this node immediately. The call returns once the pause is confirmed and no earlier
    change can undo it. Raises ``insufficient_permissions`` if an operator unpauses, and ``authority_offline`` or
    AwaitingSignatureError if the service lacks the authority's key.
    """
    if paused:
        refuse_unneeded_offline(claim)
        await _pause(service, principal, claim)
    elif principal.role == "admin":
        await _unpause(service, principal, claim)
    else:
        raise AuthenticationError("insufficient_permissions", "Only an admin may end a pause.")


async def _pause(service: Service, principal: Principal, claim: Claim) -> None:
    hold = service.brake.engage(principal, None, "pause")
    await enforce(service, hold, enforcement(service, hold), claim)


async def _unpause(service: Service, principal: Principal, claim: Claim) -> None:
    org = principal.org
    authority = await authority_of(service, org, claim)
    async with service.locks.hold(LockScope.ORG_STATE, org):
        if await earlier_outcome(service, claim) is not None:
            return
        await require_no_pending_change(service, org, _UNPAUSE.waits_for)
        await service.brake.check_all_nodes(_UNPAUSE, org, None)
        state = await _state(service, org)
        if state is None or state["paused"]:
            expected = None if state is None else state["authority_sequence"]
            change = service.instructions(org).update_org(
                signer=authority.address, expected_sequence=expected, paused=False
            )
            plan = Plan(
                org=org,
                type=_UNPAUSE,
                instructions=[change],
                authority=authority,
                entry=principal.entry("organization.unpause", org),
            )
            await carry_out(service, plan, claim)


def enforcement(service: Service, hold: EngagedBrake) -> Enforcement:
    """Return the steps that enforce an organisation's pause on the chain."""
    org, operator = hold.row.org, service.signers.operator

    async def missing() -> Plan | None:
        state = await _state(service, org)
        if state is None:
            raise BrakeRefusedError(NotFoundError("not_found", "The organisation is not on the chain."))
        if state["paused"]:
            return None
        change = service.instructions(org).update_org(signer=service.signers.operator_address, paused=True)
        return Plan(org=org, type=_PAUSE, instructions=[change], signers=[operator])

    return Enforcement("pause", _PAUSE, _UNPAUSE, missing, fulfilled=frozenset({"AlreadyPaused"}))


async def _state(service: Service, org: str) -> dict[str, Any] | None:
    """Return the organisation's account on the chain, or None if neither the node nor the service has seen it.

    Raises ``chain_unavailable`` if the node is stale: it lacks the account that the service has seen, or shows an older
    version of it.
    """
    known = await service.db.read(lambda conn: reserve(conn, org))
    state = await account_state(service, org, "Org", sequence=0 if known is None else known.sequence)
    if state is None and known is not None:
        raise stale_node_error()
    return state
