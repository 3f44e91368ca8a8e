"""What a wallet has handed out and not paid yet counts before it hands out more."""

from solders.pubkey import Pubkey

from app.core.errors import ApiError, BusinessError
from app.payments._simulation import broken_rule, verdict_on
from app.payments.expenses import Spending
from app.payments.refusing import block
from app.store.x402 import outstanding_of
from app.submission.claim import Claim


async def check_outstanding(spending: Spending, claim: Claim) -> None:
    """Ask the program whether the payment still passes once all that is outstanding has been paid.

    Without anything outstanding, the simulation of the payment itself says so. Raises ``policy_violation`` and
    ``wallet_insufficient_balance``.
    """
    service, known = spending.service, await _outstanding(spending)
    while known[1]:
        refusal = await _refusal(spending, known)
        if refusal is None:
            return
        # What has landed meanwhile would count twice: on the chain, and here.
        await service.catch_up()
        before, known = known, await _outstanding(spending)
        if known == before:
            raise await block(spending, claim, refusal) if isinstance(refusal, dict) else refusal


async def _outstanding(spending: Spending) -> tuple[int, int]:
    wallet_id = spending.wallet.wallet_id
    return await spending.service.db.read(lambda conn: outstanding_of(conn, wallet_id))


async def _refusal(spending: Spending, outstanding: tuple[int, int]) -> dict[str, str] | ApiError | None:
    """Return the rule that would refuse it, as a violation, or the error if the balance would."""
    service, wallet = spending.service, spending.wallet
    try:
        verdict = await verdict_on(service, spending, co_signed=True, outstanding=outstanding)
    except ApiError:
        # Whatever the program refuses to judge, it refuses in the simulation as well, in better words.
        return None
    if (broken := await broken_rule(service, spending, verdict)) is not None:
        return broken
    if spending.amount + outstanding[0] > (await service.chain.token_balance(Pubkey.from_string(wallet.tokens)) or 0):
        return BusinessError("wallet_insufficient_balance", "What was handed out before takes the balance.")
    return None
