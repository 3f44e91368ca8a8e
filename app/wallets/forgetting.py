"""Declares recipients unknown to a wallet."""

from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.chain.payees import first_paid
from app.core.errors import NotFoundError
from app.recipients.service import resolve
from app.submission.chain_state import stale_node_error
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Plan, PlanType
from app.wallets import service as wallets
from app.wallets.models import ForgetRecipient, WalletDetail

_FORGET = PlanType("forget_payee", resent=False)
PLAN_TYPES = (_FORGET,)


async def forget(
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: ForgetRecipient
) -> WalletDetail:
    """Make the wallet forget a known recipient. Raises ``recipient_not_found`` if the wallet does not know it."""
    async with service.locks.hold(LockScope.WALLET_STATE, wallet_id):
        if await earlier_outcome(service, claim) is None:
            wallet = await wallets.find_living(service, principal.org, wallet_id)
            payee, vault = await resolve(service, principal, body.recipient), Pubkey.from_string(wallet.vault)
            account = await service.chain.account(vault)
            if account is None:
                raise stale_node_error()
            paid = first_paid(account.data, payee.owner)
            if paid is None:
                raise NotFoundError("recipient_not_found", "The wallet does not know this recipient.")
            forgetting = service.instructions(wallet.org).forget_payee(
                operator=service.signers.operator_address, vault=vault, address=payee.owner, first_paid=paid
            )
            plan = Plan(
                org=wallet.org,
                type=_FORGET,
                instructions=[forgetting],
                signers=[service.signers.operator],
                wallet_id=wallet_id,
                entry=principal.entry("wallet.forget_recipient", wallet_id),
            )
            await carry_out(service, plan, claim)
    return wallets.shown(await wallets.find(service, principal.org, wallet_id))
