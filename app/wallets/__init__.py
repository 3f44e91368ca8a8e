"""Wallets: created, changed, frozen and archived; money between them and the reserve; session tokens."""
