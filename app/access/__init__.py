"""API keys, roles, session tokens and rate limits: who calls and what they may do."""
