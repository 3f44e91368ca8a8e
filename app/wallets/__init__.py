"""Wallets."""
