"""Facts and claims about a transaction, and its signature, away from the service."""
