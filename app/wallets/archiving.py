"""Archives empty wallets."""

from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.core.errors import BusinessError
from app.store.escrows import receives
from app.store.wallets import WalletRecord
from app.submission.chain_state import current_account
from app.submission.changes import carry_out_current, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType
from app.wallets import service as wallets
from app.wallets.freezing import CHANGES_OF_STATE
from app.wallets.models import ArchiveWallet, WalletDetail

_CLOSE = PlanType("close_wallet", resent=False, waits_for=CHANGES_OF_STATE)
PLAN_TYPES = (_CLOSE,)


async def archive(
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: ArchiveWallet
) -> WalletDetail:
    """Archive an empty wallet and end its session.

    Raises ``wallet_not_empty`` if it holds USDC, or has open escrows or allowances, and ``wallet_receives_escrows`` if
    open escrows pay it and ``body`` does not accept that.
    """
    if claim.attempt is None:
        await wallets.require(service, principal.org, wallet_id)
    async with service.locks.hold(LockScope.WALLET_STATE, wallet_id):
        if await earlier_outcome(service, claim) is None:
            await require_no_pending_change(service, principal.org, _CLOSE.waits_for, wallet_id=wallet_id)

            async def plan() -> Plan:
                before = await wallets.caught_up(service, principal.org, wallet_id)
                if not body.accept_incoming_escrows and await service.db.read(lambda conn: receives(conn, wallet_id)):
                    raise BusinessError("wallet_receives_escrows")
                return await _archiving(service, principal, before)

            await carry_out_current(service, plan, claim)
    return wallets.shown(await wallets.find(service, principal.org, wallet_id))


async def _archiving(service: Service, principal: Principal, before: WalletRecord) -> Plan:
    found = await current_account(service, before.vault, "Vault", sequence=before.sequence)
    budget: Pubkey = found["budget"]
    closing = service.instructions(before.org).close_wallet(
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(before.vault),
        policy=found["policy"],
        rent_receiver=found["payer"],
        expected_sequence=found["sequence"],
        budget=None if budget == Pubkey.default() else budget,
    )
    return Plan(
        org=before.org,
        type=_CLOSE,
        instructions=[closing],
        signers=[service.signers.operator],
        wallet_id=before.wallet_id,
        entry=principal.entry("wallet.archive", before.wallet_id),
    )
