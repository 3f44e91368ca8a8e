"""Names in the HTTP API that the service shares with its own clients, such as the tools for agents."""

VERSION = "v1"
PREFER_FIRST_CALL, FIRST_CALL = "first-called-at", "First-Called-At"
"""A value of the request header `Prefer`, and a header of the response to a replay. The response header has the time
when the idempotency key was first used.

The response has this header only if the request asked for it with `Prefer`.
"""
