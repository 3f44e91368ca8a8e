"""Escrows between agents: created, completed, disputed and resolved."""
