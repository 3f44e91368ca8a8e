"""Names in the HTTP API that the service shares with its own clients, such as the tools for agents."""

VERSION = "v1"
PREFER_FIRST_CALL, FIRST_CALL = "first-called-at", "First-Called-At"
"""The value of the request header `Prefer`, and the response header of a replay with the time when the idempotency
key was first used.

A replay has the response header only if the request asked for it with `Prefer`.
"""
