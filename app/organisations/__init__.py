"""Organisations: created on the chain and stored."""
