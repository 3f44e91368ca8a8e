"""Wallets: created, changed and archived; money between them and the reserve; session tokens."""
