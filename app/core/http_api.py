"""Names of the HTTP API that the service shares with its own clients, such as the tools for agents."""

VERSION = "v1"
PREFER_FIRST_CALL, FIRST_CALL = "first-called-at", "First-Called-At"
"""A value of the header `Prefer`, and the header that then answers a replay with the time of the key's first use."""
