"""Payments: resolve the payee, let the program judge a simulation, then store, send and confirm."""

from app.api.operation import Call
from app.core.errors import BusinessError
from app.core.transaction_types import PAYMENT
from app.payments._events import append_pending
from app.payments.expenses import ExpenseRequest
from app.payments.late_refusal import late_refusal
from app.payments.models import PayFromWallet
from app.payments.sending import ADD_LISTS, submit_expense
from app.recipients.service import resolve
from app.submission.plan import Plan, PlanType
from app.submission.program_errors import invalid_recipient
from app.transactions.models import Payment
from app.wallets import service as wallets

PAY = PlanType(PAYMENT, projected=True, braked=True)
PLAN_TYPES = (PAY, ADD_LISTS)


async def pay(call: Call, wallet_id: str, body: PayFromWallet) -> Payment:
    """Make a payment. Returns once the payment is confirmed, or with status `pending` if that takes too long.

    Raises ``policy_violation`` if the policy refuses in simulation. In that case nothing was sent, and the refusal is
    recorded. After a late refusal, the attempt is recorded as failed. If the logs of its transaction are missing, the
    error is ``transaction_failed``.
    """
    service, org, claim = call.service, call.principal.org, call.claim
    # Look first for a payment sent by an earlier run: once it is under way, the wallet's state cannot refuse it.
    outcome = await service.submitter.resume(claim)
    if outcome is None:
        payer = await wallets.find(service, org, wallet_id)
        session = call.session(payer)
        if payer.archived:
            raise BusinessError("wallet_archived")
        payee = await resolve(service, call.principal, body.to)
        if str(payee.owner) == payer.vault:
            raise invalid_recipient("to", "A wallet cannot pay itself.")
        expense = ExpenseRequest(
            payer,
            payee,
            body.amount,
            kind=PAY,
            call=call,
            memo=body.memo,
            session=session,
            allows_unverified=body.allow_unverified_recipient,
        )
        outcome = await submit_expense(expense, _plan)
        if outcome.status == "failed":
            raise await late_refusal(service, call.principal, payer, outcome)
    # A replay reports the final outcome.
    claim.open_ended = outcome.status == "pending"
    # The response equals the payment's row in the read models. Building it here saves a read for every payment.
    attempt, slot = outcome.attempt, outcome.slot if outcome.confirmed else None
    return Payment.of(attempt, status=outcome.status, on_chain_slot=slot, timestamp=attempt.created_at)


def _plan(expense: ExpenseRequest) -> Plan:
    service, wallet, owner = expense.service, expense.wallet, expense.payee.owner
    build, opens = service.instructions(wallet.org), expense.opens_account
    payment = build.execute_payment(destination=service.addresses.token_account(owner), **expense.arguments())
    front = [build.create_token_account(payer=service.signers.fee_payer_address, owner=owner)] if opens else []

    return expense.plan([*front, payment], append_pending, event_instruction=len(front))
