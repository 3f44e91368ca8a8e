"""Deliveries over TLS: the server at the checked address must prove the host's name."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.outbound import Outbound, is_public_or_loopback
from app.webhooks._sender import SendOutcome, send
from tests.support.certificates import certificate
from tests.support.webhooks import Receiver

_NAME = "hooks.example.com"


async def _here(_name: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def _send(url: str, trusted: ssl.SSLContext | None) -> SendOutcome:
    outbound = Outbound(lookup=_here, allowed=is_public_or_loopback, tls=trusted)
    return await send(outbound, url, b"{}", {})


async def test_certificate_of_the_host_is_requested_and_accepted(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, _NAME)
    asked: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with Receiver(tls=server) as receiver:
        outcome = await _send(f"https://{_NAME}:{receiver.port}/hook", client)

    assert outcome.delivered
    assert asked == [_NAME]
    [request] = receiver.received
    assert request.headers["host"] == f"{_NAME}:{receiver.port}"


@pytest.mark.parametrize(
    ("name", "trusts"),
    [("other.example.com", True), ("127.0.0.1", True), (_NAME, False)],
    ids=["another name", "an address", "unknown authority"],
)
async def test_nothing_is_sent_to_a_server_with_a_wrong_certificate(tmp_path: Path, name: str, *, trusts: bool) -> None:
    server, client = certificate(tmp_path, _NAME)
    async with Receiver(tls=server) as receiver:
        outcome = await _send(f"https://{name}:{receiver.port}/hook", client if trusts else None)

    assert (outcome.delivered, outcome.error) == (False, "connection_failed")
    assert receiver.received == []
