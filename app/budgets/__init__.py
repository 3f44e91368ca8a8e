"""Budgets: limits that several wallets share, on top of each wallet's policy."""
