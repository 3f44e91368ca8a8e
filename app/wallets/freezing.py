"""Freezes wallets. A freeze overtakes payments: it takes no lock and derives the needed change from the chain alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.core.errors import ApiError, BusinessError, NotFoundError, UnavailableError
from app.store.wallets import WalletRecord, vault_of
from app.store.wallets import wallet as wallet_of
from app.submission.brake import EngagedBrake
from app.submission.chain_state import account_state, stale_node_error
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.enforcement import BrakeRefusedError, Enforcement, enforce
from app.submission.plan import Plan, PlanType

CHANGES_OF_STATE = frozenset({"update_wallet", "stop_wallet", "freeze_wallet", "unfreeze_wallet", "close_wallet"})
FREEZE = PlanType("freeze_wallet", resent=False, stops=True)
UNFREEZE = PlanType("unfreeze_wallet", resent=False, waits_for=CHANGES_OF_STATE, lifts="freeze")
#: Reason codes of freezes: made by the operator or the authority, or caused by the expiry of the policy.
MANUAL, BY_EXPIRY = 1, 2


async def freeze(service: Service, principal: Principal, claim: Claim, wallet_id: str) -> None:
    """Stop the wallet's payments in this service, and freeze the wallet on the chain.

    Returns once no earlier change can undo the freeze. Raises a 503 error while that is uncertain; the service then
    continues with the freeze on its own. Raises the API's error if the chain refuses the freeze.
    """
    hold = service.brake.engage(principal, wallet_id, "freeze")
    await enforce(service, hold, enforcement(service, hold), claim)


@asynccontextmanager
async def braked(service: Service, principal: Principal, wallet_id: str) -> AsyncIterator[None]:
    """Stop the wallet's payments in this service during a change that freezes the wallet along with something else.

    If the change is refused, nothing is frozen and the brake returns to its earlier state. If the outcome is unknown,
    the brake stays engaged and the service continues with the freeze on its own.
    """
    before = service.brake.is_engaged(wallet_id, "freeze")
    hold = service.brake.engage(principal, wallet_id, "freeze")
    over = False
    try:
        await service.brake.show(hold)
        yield
        over = True
    except UnavailableError:
        raise
    except ApiError as refused:
        over = not before
        service.brake.refused(hold, refused.code)
        raise
    finally:
        if over:
            await service.brake.release(hold)
        else:
            service.brake.leave(hold)


def enforcement(service: Service, hold: EngagedBrake) -> Enforcement:
    """Return the steps that enforce a wallet's freeze on the chain."""

    async def missing() -> Plan | None:
        return await _missing(service, hold.row.org, hold.row.scope)

    return Enforcement(
        "freeze",
        FREEZE,
        UNFREEZE,
        missing,
        fulfilled=frozenset({"AlreadyFrozen"}),
    )


async def _missing(service: Service, org: str, wallet_id: str) -> Plan | None:
    address = await service.db.read(lambda conn: vault_of(conn, wallet_id))
    if address is None:
        raise BrakeRefusedError(NotFoundError("wallet_not_found"))
    known = await _known(service, org, wallet_id)
    state = await account_state(service, address, "Vault", sequence=0 if known is None else known.sequence)
    if state is None:
        # Only the wallet's last event proves that the wallet is archived. A stale or lying node must not end a freeze.
        await service.catch_up()
        known = await _known(service, org, wallet_id)
        raise BrakeRefusedError(BusinessError("wallet_archived")) if known and known.archived else stale_node_error()
    if state["frozen"] == MANUAL:
        return None
    signer, vault = service.signers.operator_address, Pubkey.from_string(address)
    instruction = service.instructions(org).freeze_wallet(signer=signer, vault=vault, action="Freeze")
    signers = [service.signers.operator]
    return Plan(org=org, type=FREEZE, instructions=[instruction], signers=signers, wallet_id=wallet_id)


async def _known(service: Service, org: str, wallet_id: str) -> WalletRecord | None:
    """Return the wallet according to its events, or None if the service has not seen its creation yet."""
    now = service.clock.seen_ms() // 1000
    return await service.db.read(lambda conn: wallet_of(conn, org, wallet_id, now))
