"""Calls an ASGI application directly, without a socket or an HTTP client, in the caller's task.

httpx has a transport for this, but building its request and response objects takes longer than many responses.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope


def channel(body: bytes) -> Receive:
    """Return a channel that delivers a request's body and never disconnects."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.Future()

    return receive


async def call(app: ASGIApp, scope: Scope, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, the headers and the body of an application's response.

    Lets the application's exceptions propagate.
    """
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, channel(body), send)
    start, *parts = sent
    return start["status"], list(start["headers"]), b"".join(part.get("body", b"") for part in parts)
