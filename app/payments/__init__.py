"""Payments, simulated or made, and what payments and escrows share when money leaves a wallet."""
