"""Payments by the program itself, for facilitators that settle them."""

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.core.transaction_types import ENFORCED
from app.payments.expenses import ExpenseRequest
from app.payments.sending import send_expense
from app.store.attempts import Attempt
from app.store.x402 import IssuedPayment, insert_issued_payment
from app.submission.plan import Outcome, Plan
from app.x402.payer import PaidResourceTerms, Payer
from app.x402.settlement.instructions import EVENT_INSTRUCTION, issued_payment


async def pay_by_program(payer: Payer, bought: PaidResourceTerms) -> tuple[IssuedPayment, Outcome]:
    """Sign and store an issued payment for an offer. A facilitator sends it. Raises the errors of a payment."""
    offer = bought.offer
    expense = await payer.expense(offer)
    stored: list[IssuedPayment] = []

    def plan(expense: ExpenseRequest) -> Plan:
        def store(conn: Connection, made: Attempt) -> None:
            assert made.raw is not None
            issued = bought.issued(payer, made, made.raw, lane=ENFORCED)
            insert_issued_payment(conn, issued)
            stored[:] = [issued]

        return expense.plan(
            issued_payment(expense, offer.memo),
            store,
            event_instruction=EVENT_INSTRUCTION,
            fee_payer=Pubkey.from_string(offer.fee_payer),
        )

    outcome = await send_expense(expense, plan)
    return stored[0], outcome
