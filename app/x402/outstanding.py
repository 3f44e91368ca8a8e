"""What a wallet has handed out and not paid yet counts before it hands out more."""

from solders.pubkey import Pubkey

from app.core.errors import ApiError, BusinessError
from app.payments._simulation import broken_rule, verdict_on
from app.payments.expenses import ExpenseRequest
from app.payments.refusals import record_refusal
from app.store.x402 import outstanding_payments
from app.submission.claim import Claim


async def check_outstanding(expense: ExpenseRequest, claim: Claim) -> None:
    """Ask the program whether the payment still passes once all that is outstanding has been paid.

    Without anything outstanding, the simulation of the payment itself says so. Raises ``policy_violation`` and
    ``wallet_insufficient_balance``.
    """
    service, known = expense.service, await _outstanding(expense)
    while known[1]:
        refusal = await _refusal(expense, known)
        if refusal is None:
            return
        # What has landed meanwhile would count twice: on the chain, and here.
        await service.catch_up()
        before, known = known, await _outstanding(expense)
        if known == before:
            raise await record_refusal(expense, claim, refusal) if isinstance(refusal, dict) else refusal


async def _outstanding(expense: ExpenseRequest) -> tuple[int, int]:
    wallet_id = expense.wallet.wallet_id
    return await expense.service.db.read(lambda conn: outstanding_payments(conn, wallet_id))


async def _refusal(expense: ExpenseRequest, outstanding: tuple[int, int]) -> dict[str, str] | ApiError | None:
    """Return the rule that would refuse it, as a violation, or the error if the balance would."""
    service, wallet = expense.service, expense.wallet
    try:
        verdict = await verdict_on(service, expense, co_signed=True, outstanding=outstanding)
    except ApiError:
        # Whatever the program refuses to judge, it refuses in the simulation as well, in better words.
        return None
    if (broken := await broken_rule(service, expense, verdict)) is not None:
        return broken
    if expense.amount + outstanding[0] > (await service.chain.token_balance(Pubkey.from_string(wallet.tokens)) or 0):
        return BusinessError("wallet_insufficient_balance", "What was handed out before takes the balance.")
    return None
