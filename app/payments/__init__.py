"""Payments and their simulation, and the shared code for all money that leaves a wallet."""
