"""The transactions that a facilitator settles: the program's payment or a plain transfer, followed by a memo.

Both begin with the compute budget, because facilitators require it.
"""

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from spl.token.instructions import TransferCheckedParams, transfer_checked

from app.core.money import DECIMALS
from app.payments.expenses import ExpenseRequest
from app.submission.context import Service
from app.x402.offers import Offer
from app.x402.settlement.compute_units import units_with

#: Index of the payment among a settlement's instructions.
EVENT_INSTRUCTION = 2
#: Compute unit limits of a payment and of a transfer. A memo of costly characters raises them.
_UNITS, _TRANSFER_UNITS = 150_000, 100_000
#: Priority fee in micro-lamports per compute unit, paid by the facilitator.
_PRICE = 1
_COMPUTE_BUDGET = set_compute_unit_limit(_UNITS).program_id
_MEMO_PROGRAM = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


def programs(service: Service) -> frozenset[str]:
    """Return the programs that a settlement calls. None of them can be its fee payer, because programs cannot sign."""
    called = (service.codec.program_id, service.addresses.token_program, _COMPUTE_BUDGET, _MEMO_PROGRAM)
    return frozenset(map(str, called))


def issued_payment(expense: ExpenseRequest, memo: str | None) -> list[Instruction]:
    """Return the instructions of an issued payment. ``memo`` is the memo that the resource requires."""
    service, owner = expense.service, expense.payee.owner
    build = service.instructions(expense.wallet.org)
    payment = build.execute_payment(destination=service.addresses.token_account(owner), **expense.arguments())
    return _framed(payment, expense, memo, units=_UNITS)


def delegate_transfer(
    expense: ExpenseRequest, delegate: Pubkey, tokens: Pubkey, destination: Pubkey, offer: Offer
) -> list[Instruction]:
    """Return the instructions for a delegate's payment out of an allowance's ``tokens``."""
    addresses = expense.service.addresses
    transfer = transfer_checked(
        TransferCheckedParams(
            program_id=addresses.token_program,
            source=tokens,
            mint=addresses.mint,
            dest=destination,
            owner=delegate,
            amount=expense.amount,
            decimals=DECIMALS,
        )
    )
    framed = _framed(transfer, expense, offer.memo, units=_TRANSFER_UNITS)
    return framed[:-1] if offer.bare and offer.memo is None else framed


def _framed(paying: Instruction, expense: ExpenseRequest, memo: str | None, *, units: int) -> list[Instruction]:
    text = expense.reference.hex() if memo is None else memo
    return [
        set_compute_unit_limit(max(units, units_with(text))),
        set_compute_unit_price(_PRICE),
        paying,
        Instruction(_MEMO_PROGRAM, text.encode(), []),
    ]
