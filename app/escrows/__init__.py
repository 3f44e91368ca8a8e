"""Escrows between agents: creation, completion, disputes and their resolution."""
