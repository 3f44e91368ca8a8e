"""Wallets: creation, changes, freezes and archiving; transfers between wallets and reserve; session tokens."""
