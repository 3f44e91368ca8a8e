"""Costs of the fee payer's transactions, in lamports."""

SIGNATURE = 5_000
"""The network's fee for each signature."""
TOKEN_ACCOUNT_RENT = 2_039_280
"""Rent of a token account. For a recipient's account, the fee payer does not get the rent back."""
ESCROW_RENT, ALLOWANCE_RENT = 6_994_800, 5_825_520
"""Rent of the accounts of an escrow, and of an allowance. The settlement returns the rent to the fee payer."""
SETTLEMENT = 2 * SIGNATURE
"""The fee of the transaction that settles an escrow or an allowance."""
TRANSFER = 2 * SIGNATURE + 1
"""The fee of a delegate's transfer out of an allowance: two signatures, and the priority fee rounded up."""
