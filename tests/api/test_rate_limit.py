"""Rate limits: of requests per key, and of failed authentications per address."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

from app.access.rate_limit import Buckets, Peers, RateLimits, network_of
from app.core.errors import RequestError
from app.core.settings import Settings
from app.server.application import create_app
from tests.support.processes import serving
from tests.support.service_world import ServiceWorld, error_of
from tests.support.warm import COMMAND_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")


_ONE = "/v1/wallets/wal_none"
_LIGHT = "/v1/wallets?limit=9"


class _Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class _Limited:
    """The world's service with limits of 3 requests a second and 6 at once, by a clock that the test moves."""

    def __init__(self, world: ServiceWorld, **more: object) -> None:
        self.world, self.clock = world, _Clock()
        settings = world.settings.model_copy(
            update={"rate_limit": 3, "rate_limit_burst": 6, "failed_authentications": 4, **more}
        )
        self.app = create_app(settings, world.service)
        self.app.state.rate_limits = RateLimits(settings, clock=self.clock)

    async def get(
        self, key: str, path: str = "/v1/wallets", client: str = "192.0.2.1", forwarded: str | None = None
    ) -> httpx.Response:
        return await self.call("GET", path, key, client=client, forwarded=forwarded)

    async def call(
        self,
        method: str,
        path: str,
        key: str,
        body: object = None,
        *,
        client: str = "192.0.2.1",
        forwarded: str | None = None,
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **({"X-Forwarded-For": forwarded} if forwarded else {})}
        transport = httpx.ASGITransport(self.app, client=(client, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.request(method, path, json=body, headers=headers)


@pytest_asyncio.fixture(loop_scope="module")
async def limited(world: ServiceWorld) -> AsyncIterator[_Limited]:
    yield _Limited(world)


@pytest.mark.proves("error rate_limited")
async def test_requests_beyond_the_burst_are_refused_until_the_bucket_refills(limited: _Limited) -> None:
    key = limited.world.keys["admin"]

    # Given as many requests as are allowed at once
    remaining = []
    for _ in range(6):
        response = await limited.get(key, _LIGHT)
        assert response.status_code == 200
        assert response.headers["ratelimit-policy"] == '"default";q=6;w=2'
        [found] = re.findall(r'^"default";(r=\d+;t=\d+)$', response.headers["ratelimit"])
        remaining.append(found)
        assert "retry-after" not in response.headers
    assert remaining == ["r=5;t=1", "r=4;t=1", "r=3;t=1", "r=2;t=2", "r=1;t=2", "r=0;t=2"]

    # When one more is made, it is refused and told when to retry
    limited.clock.now += 0.3
    refused = await limited.get(key, _LIGHT)
    error = error_of(refused, 429, "rate_limited")
    assert error["message"] == "The API key made too many requests."
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["ratelimit"] == '"default";r=0;t=2'
    assert refused.headers["ratelimit-policy"] == '"default";q=6;w=2'

    # Then it passes after that time, because refused requests do not count
    limited.clock.now += float(refused.headers["retry-after"])
    assert (await limited.get(key, _LIGHT)).status_code == 200


@pytest.mark.proves("Limits: Requests of a key, by weight")
async def test_steady_requests_at_the_rate_are_never_refused(limited: _Limited) -> None:
    for _ in range(60):
        limited.clock.now += 1 / 3
        assert (await limited.get(limited.world.keys["admin"], _LIGHT)).status_code == 200


@pytest.mark.proves("Limits: Requests of a key at once, by weight")
async def test_bucket_refills_evenly(limited: _Limited) -> None:
    key = limited.world.keys["admin"]
    answers = [await limited.get(key, _ONE) for _ in range(6)]

    for _ in range(4):
        limited.clock.now += 1 / 3
        answers += [await limited.get(key, _ONE), await limited.get(key, _ONE)]

    assert [one.status_code for one in answers] == [404] * 6 + [404, 429] * 4


async def test_request_takes_its_weight_and_at_most_the_whole_bucket(limited: _Limited) -> None:
    key = limited.world.keys["admin"]
    for path, rest in (
        (_ONE, 5),
        ("/v1/wallets?limit=9", 4),
        ("/v1/wallets", 1),
    ):
        assert (await limited.get(key, path)).headers["ratelimit"].split(";")[1] == f"r={rest}", path
    error_of(await limited.get(key, "/v1/wallets?limit=5000"), 400, "invalid_request")
    error_of(await limited.get(key, "/v1/wallets?limit=x"), 429, "rate_limited")

    # A page of 100 weighs more than the bucket holds. It passes once the bucket is full.
    refused = await limited.get(key, "/v1/wallets?limit=100")
    error_of(refused, 429, "rate_limited")
    limited.clock.now += int(refused.headers["retry-after"])
    found = await limited.get(key, "/v1/wallets?limit=100")
    assert (found.status_code, found.headers["ratelimit"]) == (200, '"default";r=0;t=2')


@pytest.mark.proves("Limits: Requests of a key at once, by weight")
async def test_heaviest_request_passes_on_three_nodes() -> None:
    clock, settings = _Clock(), Settings(rate_limit=100, rate_limit_burst=200)
    peers = Peers()
    peers.count = 3
    three = [RateLimits(settings, peers, clock=clock) for _ in range(3)]

    def passed(weight: int) -> int:
        return sum(_passes(node, weight) for node in three for _ in range(200))

    assert passed(1) == 3 * 66
    later = []
    for _ in range(10):
        clock.now += 0.5
        later.append(passed(1))
    assert (sum(later), min(later), max(later)) == (3 * 165, 48, 51)
    clock.now += 2
    # A weight above each node's share takes the share.
    assert passed(100) == 3
    # A node that starts takes its share of a bucket that is in use.
    peers = Peers()
    alone = RateLimits(settings, peers, clock=clock)
    assert sum(_passes(alone, 1) for _ in range(201)) == 200
    peers.count = 3
    clock.now += 1
    assert sum(_passes(alone, 1) for _ in range(200)) == 33


def _passes(limits: RateLimits, weight: int) -> bool:
    try:
        return bool(limits.count("key", weight))
    except RequestError:
        return False


async def test_each_key_has_a_limit_of_its_own(limited: _Limited) -> None:
    first, second = limited.world.key("viewer"), limited.world.key("viewer")
    while (await limited.get(first)).status_code == 200:
        pass

    assert (await limited.get(second)).status_code == 200


async def test_errors_count_and_tell_of_the_limit_too(limited: _Limited) -> None:
    response = await limited.get(limited.world.key("viewer"), "/v1/wallets/wal_unknown")

    error_of(response, 404, "wallet_not_found")
    assert response.headers["ratelimit"] == '"default";r=5;t=1'


@pytest.mark.proves("error rate_limited", "Limits: Failed authentications")
async def test_flood_without_a_key_is_refused_by_address(limited: _Limited) -> None:
    for _ in range(4):
        error_of(await limited.get("nonsense"), 401, "authentication_failed")

    refused = await limited.get("nonsense")

    error = error_of(refused, 429, "rate_limited")
    assert error["message"] == "Too many failed authentications from this address. Retry later."
    assert refused.headers["retry-after"] == "15"
    # Other addresses, and requests with a key from the same address, are not affected.
    error_of(await limited.get("nonsense", client="192.0.2.2"), 401, "authentication_failed")
    assert (await limited.get(limited.world.keys["admin"])).status_code == 200
    limited.clock.now += 15
    error_of(await limited.get("nonsense"), 401, "authentication_failed")


@pytest.mark.proves("Authentication: Proxies")
async def test_client_evades_no_limit_by_naming_other_addresses(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer nonsense"}
    environment = {"AGENT_VAULT_FAILED_AUTHENTICATIONS": "4"}
    async with serving(tmp_path / "data", COMMAND_LINE, **environment) as service:
        statuses = [
            (
                await service.client.get("/v1/wallets", headers={**headers, "X-Forwarded-For": f"192.0.2.{number}"})
            ).status_code
            for number in range(6)
        ]

    assert statuses == [401] * 4 + [429] * 2


@pytest.mark.proves("Authentication: Proxies")
async def test_trusted_proxy_names_the_client_and_what_that_adds_is_ignored(world: ServiceWorld) -> None:
    limited = _Limited(world, trusted_proxies="10.0.0.5, 10.1.0.0/16")

    # The nearest address that is no trusted proxy counts, not the one that a client wrote before it.
    for number in range(4):
        chain = f"198.51.100.{number}, 192.0.2.7, 10.1.2.3"
        error_of(await limited.get("nonsense", client="10.0.0.5", forwarded=chain), 401, "authentication_failed")
    refused = await limited.get("nonsense", client="10.1.9.9", forwarded="198.51.100.9, 192.0.2.7")
    error_of(refused, 429, "rate_limited")

    # Another client behind the proxy has a limit of its own, and others than the proxy name nobody.
    other = await limited.get("nonsense", client="10.0.0.5", forwarded="192.0.2.8")
    error_of(other, 401, "authentication_failed")
    direct = await limited.get("nonsense", client="192.0.2.7", forwarded="192.0.2.9")
    error_of(direct, 429, "rate_limited")


@pytest.mark.parametrize("proxies", ["*", "proxy.example.com", "10.0.0.1/8", "10.0.0.5;10.0.0.6"])
async def test_trusted_proxies_are_addresses_or_networks(proxies: str) -> None:
    with pytest.raises(ValidationError, match="neither an address nor a network"):
        Settings(trusted_proxies=proxies)


@pytest.mark.proves("Limits: Requests of a key at once, by weight")
async def test_many_at_once_get_exactly_the_burst(limited: _Limited) -> None:
    responses = await asyncio.gather(*(limited.get(limited.world.keys["admin"], _ONE) for _ in range(20)))

    assert sorted(one.status_code for one in responses) == [404] * 6 + [429] * 14


@pytest.mark.proves("Limits: Requests of a key, by weight")
async def test_brakes_are_not_held_up_by_a_flood_of_their_key(limited: _Limited) -> None:
    key, pause = limited.world.keys["admin"], "/v1/organization/pause"
    await asyncio.gather(*(limited.get(key) for _ in range(20)))
    error_of(await limited.get(key), 429, "rate_limited")

    for _ in range(2):
        assert (await limited.call("POST", pause, key, {"paused": True})).status_code == 200
    # A flood of brakes has the same limit.
    freeze = {"status": "frozen"}
    answers = [await limited.call("PATCH", _ONE, key, freeze) for _ in range(4)]
    answers += [await limited.call("DELETE", "/v1/signed-transactions/tx_none", key, {}) for _ in range(2)]
    assert [one.status_code for one in answers] == [404] * 4 + [429] * 2
    limited.clock.now += 2
    assert (await limited.call("POST", pause, key, {"paused": False})).status_code == 200


@pytest.mark.proves("Limits: Requests of a key, by weight")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/wallets/wal_none", {"label": "x"}),
        ("PATCH", "/v1/wallets/wal_none", {"status": "active"}),
        ("PATCH", "/v1/wallets/wal_none", {"status": "frozen", "tags": 5}),
        ("POST", "/v1/organization/pause", {"paused": False}),
        ("POST", "/v1/organization/pause", {}),
        ("POST", "/v1/wallets/wal_none/rotate-token", {}),
    ],
)
async def test_nothing_but_brakes_draws_on_their_bucket(
    limited: _Limited, method: str, path: str, body: dict[str, object]
) -> None:
    key = limited.world.keys["admin"]
    answers = [await limited.call(method, path, key, body) for _ in range(8)]

    assert [one.status_code for one in answers[6:]] == [429, 429]
    assert all(one.headers["ratelimit"].startswith('"default"') for one in answers)
    brake = await limited.call("PATCH", _ONE, key, {"status": "frozen"})
    assert (brake.status_code, brake.headers["ratelimit"]) == (404, '"brake";r=5;t=1')


async def test_refused_freeze_of_a_viewer_is_no_brake(limited: _Limited) -> None:
    viewer = limited.world.key("viewer")

    answer = await limited.call("PATCH", _ONE, viewer, {"status": "frozen"})

    error_of(answer, 403, "insufficient_permissions")
    assert answer.headers["ratelimit"] == '"default";r=5;t=1'


async def test_probes_are_not_limited(limited: _Limited) -> None:
    key = limited.world.keys["admin"]
    for path in ("/readyz", "/healthz"):
        answers = [await limited.get(key, path) for _ in range(20)]
        assert {one.status_code for one in answers} == {200}
        assert not any("ratelimit" in one.headers for one in answers)


async def test_limits_can_be_switched_off() -> None:
    off = RateLimits(Settings(rate_limit=0, failed_authentications=0))

    for _ in range(1_000):
        assert off.count("key") == {}
        off.failed("192.0.2.1")


async def test_memory_is_bounded() -> None:
    buckets = Buckets(5, 60, clock=_Clock(), max_names=100)
    for number in range(1_000):
        assert buckets.take(f"address-{number}", buckets.limit) == (True, 4, 12, 1)

    assert len(buckets) == 100


async def test_one_host_counts_once_however_many_addresses_it_has() -> None:
    assert network_of("2001:db8:1:2::1") == network_of("2001:db8:1:2:ffff::9") != network_of("2001:db8:1:3::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of(None) == network_of("a socket")


async def test_burst_that_is_no_multiple_of_the_rate_is_refused() -> None:
    with pytest.raises(ValidationError, match="multiple"):
        Settings(rate_limit=100, rate_limit_burst=150)


@pytest.mark.proves("Limits: Searches of the documents")
async def test_searches_and_missing_pages_of_an_address_are_limited(world: ServiceWorld) -> None:
    limited = _Limited(world, failed_authentications=1)

    statuses = [(await limited.get("", "/docs/search?q=freeze")).status_code for _ in range(6)]

    assert statuses == [200] * 5 + [429]
    assert (await limited.get("", "/docs/nothing")).status_code == 429
    assert (await limited.get("", "/docs/guides/escrow")).status_code == 200
    assert (await limited.get("", "/docs/search?q=freeze", client="192.0.2.2")).status_code == 200
