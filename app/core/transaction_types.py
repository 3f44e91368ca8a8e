"""The types and statuses of rows in the list of transactions."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

TransactionStatus = Literal["pending", "confirmed", "blocked", "failed"]
TransactionType = Literal[
    "payment", "funding", "withdrawal", "a2a_send", "a2a_receive", "escrow_lock", "escrow_release", "escrow_refund"
]
STATUSES: Sequence[TransactionStatus] = get_args(TransactionStatus)
TYPES: Sequence[TransactionType] = get_args(TransactionType)
"""All types of rows. The list of transactions omits rows of any other type."""
PAYMENT: Final = "payment"
FUNDING: Final = "funding"
WITHDRAWAL: Final = "withdrawal"
ESCROW_LOCK: Final = "escrow_lock"
ESCROW_RELEASE: Final = "escrow_release"
ESCROW_REFUND: Final = "escrow_refund"
A2A_SEND: Final = "a2a_send"
A2A_RECEIVE: Final = "a2a_receive"
"""`A2A_SEND` and `A2A_RECEIVE` rows show an escrow to its sender and its receiver.

Totals count only the `escrow_*` rows.
"""
DEBITS = (PAYMENT, ESCROW_LOCK, WITHDRAWAL)
"""Types of confirmed rows that lower a vault's balance."""
MOVEMENTS = (*DEBITS, FUNDING, ESCROW_RELEASE, ESCROW_REFUND)
"""Types of confirmed rows that change a vault's balance. Rows of the other types repeat an escrow's movements."""
SPENT = (PAYMENT, ESCROW_LOCK)
"""Types of confirmed rows that a policy has judged."""
REFUSED = (PAYMENT, A2A_SEND)
"""Types of blocked rows. A refused escrow is an `a2a_send`."""
GRANT: Final = "grant_allowance"
"""Type of attempts that grant an allowance. The row of such an attempt is a `payment`."""
ROW_OF: Mapping[str, TransactionType] = {
    **{one: one for one in (PAYMENT, FUNDING, WITHDRAWAL, ESCROW_LOCK, A2A_SEND)},
    # Policies judge and count the grant of an allowance like a payment.
    GRANT: PAYMENT,
}
"""The type of row for each type of attempt.

Attempts of other types have no row of their own. Some move no money, such as a freeze. The rows of others come from
their events, such as the rows of a funding batch.
"""

Purpose = Literal["payment", "escrow", "allowance"]
PURPOSES: Sequence[Purpose] = get_args(Purpose)
"""Purposes of an approval, in the order of the program's codes."""

SettlementPath = Literal["enforced", "allowance"]
"""The settlement path of an issued payment: by the program itself, or by a delegate out of an allowance."""
ProtocolName = Literal["x402", "mpp"]
"""The protocol of a paid request."""
MPP_SCHEME: Final = "Payment"
"""The HTTP authentication scheme of MPP. Its challenges and credentials begin with this name."""
ENFORCED: Final = "enforced"
ALLOWANCE: Final = "allowance"
