"""Budgets: limits that wallets share, on top of each one's policy."""
