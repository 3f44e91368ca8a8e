"""The types and statuses of the rows in the list of transactions."""

from collections.abc import Sequence
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
ROW_TYPES = (PAYMENT, FUNDING, WITHDRAWAL, ESCROW_LOCK, A2A_SEND)
"""Types of attempts that the list shows; others, such as a freeze, move no money."""
