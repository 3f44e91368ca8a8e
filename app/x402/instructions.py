"""The transaction that a facilitator settles: the program's payment between the compute budget and a memo."""

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.payments.spending import Spending

#: Index of the payment among the instructions.
EVENT_INSTRUCTION = 2
#: More than any payment takes, and less than the 400,000 that facilitators accept.
_UNITS = 150_000
#: In micro-lamports, which the facilitator pays.
_PRICE = 1
_MEMO_PROGRAM = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


def settled_by_others(spending: Spending, memo: str | None) -> list[Instruction]:
    """Return the instructions of a payment that others send; ``memo`` is what the resource demands."""
    service, owner = spending.service, spending.payee.owner
    build = service.instructions(spending.wallet.org)
    payment = build.execute_payment(destination=service.addresses.token_account(owner), **spending.arguments())
    text = spending.reference.hex() if memo is None else memo
    return [
        set_compute_unit_limit(_UNITS),
        set_compute_unit_price(_PRICE),
        payment,
        Instruction(_MEMO_PROGRAM, text.encode(), []),
    ]
