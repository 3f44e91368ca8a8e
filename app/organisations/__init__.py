"""Organisations: created on the chain, paused and resumed."""
