"""Compares reserves, wallets and open escrows on the chain with the read models, and reports what differs."""
