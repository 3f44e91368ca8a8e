"""Who calls and what they may do: API keys, roles, session tokens, rate limits."""
