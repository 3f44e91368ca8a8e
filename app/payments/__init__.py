"""Payments, simulated or made, and the shared flow of money that leaves a wallet."""
