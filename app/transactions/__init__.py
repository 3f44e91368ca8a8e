"""The list of transactions: payments, fundings, withdrawals and escrows of wallets, including refused ones."""
