"""Count a wallet's outstanding amount before it issues another payment."""

from app.core.errors import ApiError, BusinessError
from app.payments._simulation import broken_rule, other_error, verdict_on
from app.payments.expenses import ExpenseRequest
from app.payments.refusals import record_refusal
from app.store.x402 import outstanding_payments


async def check_outstanding(expense: ExpenseRequest) -> None:
    """Ask the program whether the payment would still pass after all of the wallet's outstanding payments.

    If nothing is outstanding, or the program gives no verdict, the simulation of the payment itself decides. Raises
    ``policy_violation`` if a rule would refuse the payment, and ``wallet_insufficient_balance`` if the balance would
    not suffice.
    """
    service, known = expense.service, await _outstanding(expense)
    while known[1]:
        refusal = await _refusal(expense, known)
        if refusal is None:
            return
        # A payment that has just landed would count twice, on the chain and here. Catch up and compare again.
        await service.catch_up()
        before, known = known, await _outstanding(expense)
        if known == before:
            raise await record_refusal(expense, refusal) if isinstance(refusal, dict) else refusal


async def _outstanding(expense: ExpenseRequest) -> tuple[int, int]:
    wallet_id = expense.wallet.wallet_id
    return await expense.service.db.read(lambda conn: outstanding_payments(conn, wallet_id))


async def _refusal(expense: ExpenseRequest, outstanding: tuple[int, int]) -> dict[str, str] | ApiError | None:
    """Return the violation of a rule, or the error for a lack of balance.

    Returns None if the payment passes, or if the program gives no verdict on it.
    """
    service = expense.service
    try:
        verdict = await verdict_on(service, expense, co_signed=True, outstanding=outstanding)
    except ApiError:
        # The simulation refuses this payment too, with a better message.
        return None
    if (broken := await broken_rule(service, expense, verdict)) is not None:
        return broken
    if other_error(service, verdict) == "wallet_insufficient_balance":
        return BusinessError(
            "wallet_insufficient_balance", "The balance is too low for this payment and the outstanding ones."
        )
    return None
