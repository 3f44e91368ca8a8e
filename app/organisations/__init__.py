"""Organisations: their creation on the chain, pauses, roles and deposit address."""
