"""The types and statuses of the rows in the list of transactions."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

TransactionStatus = Literal["pending", "confirmed", "blocked", "failed"]
TransactionType = Literal[
    "payment", "funding", "withdrawal", "a2a_send", "a2a_receive", "escrow_lock", "escrow_release", "escrow_refund"
]
STATUSES: Sequence[TransactionStatus] = get_args(TransactionStatus)
TYPES: Sequence[TransactionType] = get_args(TransactionType)
"""All there are; lists would miss a row with another."""
PAYMENT: Final = "payment"
FUNDING: Final = "funding"
WITHDRAWAL: Final = "withdrawal"
ESCROW_LOCK: Final = "escrow_lock"
ESCROW_RELEASE: Final = "escrow_release"
ESCROW_REFUND: Final = "escrow_refund"
A2A_SEND: Final = "a2a_send"
A2A_RECEIVE: Final = "a2a_receive"
"""With `A2A_SEND`: an escrow from its agents' point of view. Only the `escrow_*` rows count in sums."""
SPENT = (PAYMENT, ESCROW_LOCK)
"""Types of confirmed rows that policies judged."""
REFUSED = (PAYMENT, A2A_SEND)
"""Types of blocked rows; a refused escrow is an `a2a_send`."""
GRANT: Final = "grant_allowance"
"""The type of an attempt, not of a row."""
ROW_OF: Mapping[str, TransactionType] = {
    **{one: one for one in (PAYMENT, FUNDING, WITHDRAWAL, ESCROW_LOCK, A2A_SEND)},
    # Policies judge and charge the grant of an allowance as the payment that its delegate may make.
    GRANT: PAYMENT,
}
"""The type of row by the type of the attempt; others, such as a freeze, move no money and are not listed."""

Purpose = Literal["payment", "escrow", "allowance"]
PURPOSES: Sequence[Purpose] = get_args(Purpose)
"""What an approval is for, by the program's code."""

SettlementPath = Literal["enforced", "allowance"]
"""How a paid resource is paid: by the program's payment itself, or by a delegate out of an allowance."""
ENFORCED: Final = "enforced"
ALLOWANCE: Final = "allowance"
