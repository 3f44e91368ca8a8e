"""No web page reaches the API or the embedded chain by rebinding its name to this machine's address."""

import asyncio

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.api.http_protocol import protocol
from app.core.hosts import AllowedHosts
from app.core.settings import Settings
from app.localnet import Localnet
from app.server.application import create_app
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_REBOUND = {"Host": "evil.example:8402"}
_HEALTH = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}


@pytest.mark.proves("error host_not_allowed")
@pytest.mark.parametrize(
    "headers",
    [
        _REBOUND,
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "10.0.0.1"},
        {"Host": "[::2]:8402"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "localhost"},
    ],
)
async def test_api_refuses_other_hosts_and_origins(world: ServiceWorld, headers: dict[str, str]) -> None:
    before = world.line.methods.copy()
    for path in ("/v1/wallets", "/metrics", "/docs", "/nothing"):
        error = error_of(await world.call("GET", path, headers=headers), 403, "host_not_allowed")
        assert "AGENT_VAULT_PUBLIC_URL" in error["message"]
    assert [one for one in world.line.methods[len(before) :] if one == "sendTransaction"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8402"},
        {"Host": "127.8.8.8"},
        {"Host": "[::1]:8402"},
        {"Host": "LocalHost"},
        {"Host": "localhost", "Origin": "http://localhost:3000"},
    ],
)
async def test_api_answers_under_its_machines_own_names(world: ServiceWorld, headers: dict[str, str]) -> None:
    assert (await world.call("GET", "/v1/wallets", headers=headers)).status_code == 200


async def test_api_answers_under_its_public_url(world: ServiceWorld) -> None:
    settings = world.settings.model_copy(update={"public_url": "https://Pay.example.com/vault"})
    transport = httpx.ASGITransport(create_app(settings, world.service))
    async with httpx.AsyncClient(transport=transport, base_url="https://pay.example.com") as http:
        assert (await http.get("/docs")).status_code == 200
        assert (await http.get("/docs", headers={"Origin": "https://pay.example.com"})).status_code == 200
        error_of(await http.get("/docs", headers=_REBOUND), 403, "host_not_allowed")


async def test_probes_are_answered_under_any_host(world: ServiceWorld) -> None:
    for path in ("/healthz", "/readyz"):
        assert (await world.call("GET", path, headers={"Host": "10.1.2.3:8402"})).status_code == 200


async def test_embedded_chain_refuses_other_hosts_and_origins() -> None:
    hosts = Settings(localnet_hosts="explorer.solana.com, chain.internal").chain_hosts()
    async with Localnet.open(None, {}) as localnet, localnet.serving("127.0.0.1", 0, hosts=hosts) as (port, ws_port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            for headers in (_REBOUND, {"Origin": "http://evil.example"}, {"Origin": "null"}):
                for method, path in (("POST", "/"), ("GET", "/health"), ("OPTIONS", "/")):
                    refused = await http.request(method, path, json=_HEALTH, headers=headers)
                    assert refused.status_code == 403
                    assert "AGENT_VAULT_LOCALNET_HOSTS" in refused.text
                    assert "access-control-allow-origin" not in refused.headers
                with pytest.raises(InvalidStatus) as refusal:
                    await _connect(ws_port, headers)
                assert refusal.value.response.status_code == 403
                assert b"AGENT_VAULT_LOCALNET_HOSTS" in (refusal.value.response.body or b"")

            for headers in (
                {},
                {"Host": f"localhost:{port}"},
                {"Host": "chain.internal"},
                {"Origin": "https://explorer.solana.com"},
            ):
                assert (await http.post("/", json=_HEALTH, headers=headers)).json()["result"] == "ok"
        async with connect(f"ws://localhost:{ws_port}", origin="https://explorer.solana.com"):  # type: ignore[arg-type]
            pass


async def _connect(port: int, headers: dict[str, str]) -> None:
    """Open a WebSocket as a page would whose name leads to this machine."""
    url = f"ws://{headers.get('Host', 'localhost')}"
    origin = headers.get("Origin")
    async with connect(url, host="127.0.0.1", port=port, origin=origin):  # type: ignore[arg-type]
        pass


async def test_late_request_to_the_embedded_chain_is_cut_off() -> None:
    http = protocol(0.3)
    async with (
        Localnet.open(None, {}) as localnet,
        localnet.serving("127.0.0.1", 0, hosts=AllowedHosts(), http=http) as ports,
    ):
        for port in ports:
            for sent in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
        # What is no request at all is answered and closed.
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"nonsense\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400 ")
        writer.close()
        # A subscriber may stay: longer than a connection without a request that was opened after it.
        async with connect(f"ws://127.0.0.1:{ports[1]}") as ws:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await ws.send('{"jsonrpc":"2.0","id":1,"method":"slotSubscribe"}')
            assert "result" in str(await asyncio.wait_for(ws.recv(), 5))
