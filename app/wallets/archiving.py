"""Archives empty wallets."""

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.store.wallets import WalletRecord
from app.submission.chain_state import known_account
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType
from app.wallets import service as wallets
from app.wallets.freezing import CHANGES_OF_STATE
from app.wallets.models import WalletDetail

_CLOSE = PlanType("close_wallet", resent=False, waits_for=CHANGES_OF_STATE)
PLAN_TYPES = (_CLOSE,)


async def archive(service: Service, principal: Principal, claim: Claim, wallet_id: str) -> WalletDetail:
    """Archive an empty wallet. Raises ``wallet_not_empty`` if it holds USDC, or has open escrows or allowances."""
    if claim.attempt is None:
        await wallets.require(service, principal.org, wallet_id)
    async with service.locks.hold(LockScope.WALLET_STATE, wallet_id):
        if await earlier_outcome(service, claim) is None:
            await require_no_pending_change(service, principal.org, _CLOSE.waits_for, wallet_id=wallet_id)
            before = await wallets.find_living(service, principal.org, wallet_id)
            await carry_out(service, _archiving(service, principal, before, await _closing(service, before)), claim)
    return wallets.shown(await wallets.find(service, principal.org, wallet_id))


async def _closing(service: Service, before: WalletRecord) -> Instruction:
    vault = Pubkey.from_string(before.vault)
    found = await known_account(service, vault)
    budget: Pubkey = found["budget"]
    return service.instructions(before.org).close_wallet(
        operator=service.signers.operator_address,
        vault=vault,
        policy=Pubkey.from_string(before.policy.address),
        rent_receiver=found["payer"],
        budget=None if budget == Pubkey.default() else budget,
    )


def _archiving(service: Service, principal: Principal, before: WalletRecord, instruction: Instruction) -> Plan:
    return Plan(
        org=before.org,
        type=_CLOSE,
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=before.wallet_id,
        entry=principal.entry("wallet.archive", before.wallet_id),
    )
