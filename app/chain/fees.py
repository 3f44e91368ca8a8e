"""Costs of the fee payer's transactions, in lamports."""

SIGNATURE = 5_000
"""The network's fee for each signature."""
TOKEN_ACCOUNT_RENT = 2_039_280
"""Rent of a token account. It does not return to the fee payer if the account belongs to a recipient."""
ESCROW_RENT, ALLOWANCE_RENT = 6_493_680, 5_714_160
"""Rent of the accounts of an escrow and of an allowance. It returns when they are settled."""
SETTLEMENT = 2 * SIGNATURE
"""The fee of the transaction that settles an escrow or an allowance."""
