"""Operations that send, simulate and read payments."""

from app.access.auth import PAYERS, READERS_AND_AGENT
from app.api.operation import Call, operation
from app.payments import service as payments
from app.payments._simulation import simulate
from app.payments.expense_errors import SPENDING_ERRORS
from app.payments.models import CreatePayment, PayFromWallet, QuickPayment, SimulatePayment, Simulation
from app.transactions import service as transactions
from app.transactions.models import Payment, Transaction


@operation("POST /v1/payments", roles=PAYERS, errors=SPENDING_ERRORS, session=True, pays=True)
async def create_payment(call: Call, body: CreatePayment) -> Payment:
    """Send a payment.

    First, a simulation asks the program if the wallet's policy allows the payment. If the policy refuses, the response
    is 402 and the payment is never sent. The program judges the payment again when it lands. If the program then
    refuses, no money moves. Responds once the chain has confirmed the payment, or with the status `pending` if that
    takes too long.
    """
    return await payments.pay(call, body.wallet_id, body)


@operation(
    "POST /v1/wallets/{wallet_id}/pay", tag="payments", roles=PAYERS, errors=SPENDING_ERRORS, session=True, pays=True
)
async def pay_from_wallet(call: Call, body: PayFromWallet) -> QuickPayment:
    """Send a payment from the wallet in the path."""
    paid = await payments.pay(call, call.path("wallet_id"), body)
    return QuickPayment(**paid.model_dump(), signature=paid.tx_signature)


@operation(
    "POST /v1/payments/simulate",
    roles=READERS_AND_AGENT,
    errors=("invalid_amount", "invalid_recipient", "wallet_not_found", "wallet_archived", "chain_unavailable"),
    session=True,
    changes=False,
)
async def simulate_payment(call: Call, body: SimulatePayment) -> Simulation:
    """Simulate a payment.

    Asks the program for the verdict of every rule: its limit, the attempted value, the headroom, and the time when the
    same payment would pass. Nothing is recorded.
    """
    return await simulate(call, body)


@operation("GET /v1/payments/{tx_id}", roles=READERS_AND_AGENT, errors=("transaction_not_found",))
async def get_payment(call: Call) -> Transaction:
    """Get a payment."""
    return await transactions.get(call.service, call.principal, call.path("tx_id"))
