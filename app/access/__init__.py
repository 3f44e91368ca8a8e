"""API keys, roles, session tokens and rate limits: identifies each caller and decides on their permissions."""
