"""Policies: the rules and allowlists of wallets, their changes, previews and history."""
