"""Shows what a transaction changes, and signs it, away from the service."""
