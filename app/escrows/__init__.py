"""Escrows."""
