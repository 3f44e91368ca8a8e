"""Nodes behind HAProxy under faults: nothing is lost, doubled or disordered.

Three nodes are killed and stopped for a while, and their PostgreSQL is restarted; two have a chain's node that lies and
forgets. With `--full` ten and eight minutes instead of half a one.
"""

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.nodes.nodes import Nodes, balanced, haproxy, nodes_on
from tests.support.admin_sign_in import sign_in
from tests.support.agreement import (
    export_problems,
    history,
    pending,
    unlike_the_chain,
    within,
    wronged,
    wronged_escrows,
)
from tests.support.fault_proxy import fault_proxy
from tests.support.faults import Faults
from tests.support.fleet import Fleet
from tests.support.postgres import Cluster
from tests.support.processes import command, free_ports
from tests.support.warm import Fork
from tests.support.webhooks import Receiver

_AGENTS = 8
"""Each is four clients: two pay, one locks escrows, one reads, freezes and unfreezes."""
_DECIDED, _DELIVERED = 180.0, 60.0
"""Seconds after the last fault in which nothing is pending and all rows equal the chain's, and seconds in which a
receiver that lacks something gets more: ten minutes of load leave tens of thousands of events to send in order."""
_STOPPED = 4.5
"""Seconds for which a node is stopped: longer than it may keep the others from writing, shorter than its lease.

After that another node goes on with its webhooks, and it may send what it was about to send once more, late.
"""


_HUNG = 20.0
"""Seconds for which a node hangs, and in which the others must go on without it."""
_LONGEST_GAP = 8.0
"""Seconds without any success while a node hangs: it is noticed within four, and the others have much to catch up."""


@dataclass(frozen=True, slots=True)
class _Profile:
    """The nodes, the seconds of work, those between two kills and until a stop, those of the database's restarts.

    `lies` is the share of the chain's answers that are false, `slot_ms` the milliseconds of a slot: with short ones,
    transactions that were never sent expire soon.
    """

    names: tuple[str, ...]
    seconds: float
    between_kills: float
    between_stops: float
    restarts: tuple[tuple[float, signal.Signals], ...]
    lies: float
    slot_ms: int


_TWO, _THREE = ("one", "two"), ("one", "two", "three")
#: By `--full`. SIGQUIT ends the database as a crash does.
_PROFILES = {
    "deaths": {
        False: _Profile(_THREE, 16, 6, 2, ((9, signal.SIGQUIT),), 0, 60),
        True: _Profile(_THREE, 600, 10, 20, ((200, signal.SIGINT), (400, signal.SIGQUIT)), 0, 400),
    },
    "lies": {
        False: _Profile(_TWO, 16, 10, 100, (), 0.2, 100),
        True: _Profile(_TWO, 480, 30, 100, (), 0.12, 400),
    },
}


@dataclass(frozen=True)
class Service:
    """What clients see of the nodes: one address."""

    nodes: Nodes
    client: httpx.AsyncClient
    profile: _Profile
    faults: Faults

    @property
    def folder(self) -> Path:
        return self.nodes.folder

    @property
    def chain(self) -> Any:
        return self.nodes.chain

    @property
    def chain_url(self) -> str:
        return self.nodes.chain_url


@pytest_asyncio.fixture(name="service", params=_PROFILES)
async def _service(
    cluster: Cluster, template: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Service]:
    haproxy()
    profile = _PROFILES[request.param][request.config.getoption("--full")]
    seed = random.randrange(10**6)
    async with AsyncExitStack() as stack:
        founding = nodes_on(cluster, template, tmp_path, usdc=1_000_000, slot_ms=profile.slot_ms)
        nodes, faults = await stack.enter_async_context(founding), Faults(seed, longest=11.0)
        if profile.lies:
            _, lying = free_ports()
            truthful = int(nodes.chain_url.rpartition(":")[2])
            await stack.enter_async_context(fault_proxy(faults, lying, truthful))
            nodes.rpc_url = f"http://127.0.0.1:{lying}"
        url = await _behind_haproxy(stack, nodes, profile.names)
        yield Service(nodes, await stack.enter_async_context(nodes.client_of(url)), profile, faults)


async def _behind_haproxy(stack: AsyncExitStack, nodes: Nodes, names: Sequence[str]) -> str:
    """Start these nodes and HAProxy in front of them; returns its address."""
    await asyncio.gather(*(_start(nodes, name) for name in names))
    port, _ = free_ports()
    addresses = [f"127.0.0.1:{nodes.ports[name]}" for name in names]
    return await stack.enter_async_context(balanced(f"127.0.0.1:{port}", addresses, nodes.folder / "haproxy.log"))


async def _start(nodes: Nodes, name: str) -> None:
    await nodes.start(name, AGENT_VAULT_TRUSTED_PROXIES="127.0.0.1")


async def _kill(nodes: Nodes, choice: random.Random, every: float, kills: list[str]) -> None:
    """Kill a random node every so many seconds, and start it again at once."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as starting:
        for number in itertools.count(1):
            await asyncio.sleep(began + number * every - time.monotonic())
            if not nodes.clients:
                continue  # the last ones are still starting
            name = choice.choice(sorted(nodes.clients))
            kills.append(name)
            await nodes.stop(name)
            starting.create_task(_revive(nodes, name))


async def _stop(nodes: Nodes, choice: random.Random, every: float, stops: list[str]) -> None:
    """Stop a random node now and then, as if its machine stood still, and let it go on after a while."""
    while True:
        await asyncio.sleep(every)
        if not nodes.processes:
            continue
        name = choice.choice(sorted(nodes.processes))
        process = nodes.processes[name]
        stops.append(name)
        _signal(process, signal.SIGSTOP)
        try:
            await asyncio.sleep(_STOPPED)
        finally:
            _signal(process, signal.SIGCONT)


def _signal(process: Fork, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # killed meanwhile
        process.send_signal(what)


async def _revive(nodes: Nodes, name: str) -> None:
    """Start a node, again if it finds no database, as a supervisor would."""
    for _ in range(20):
        try:
            return await _start(nodes, name)
        except AssertionError as error:
            last = error
    raise last


async def _restart(cluster: Cluster, profile: _Profile) -> None:
    began = time.monotonic()
    for moment, how in profile.restarts:
        await asyncio.sleep(began + moment - time.monotonic())
        await asyncio.to_thread(cluster.restart, how)


def _in_order(feed: list[str], received: list[str]) -> list[str]:
    """Return how what an endpoint received differs from the feed; one event may come again before the next."""
    once = [event for event, _again in itertools.groupby(received)]
    found = [f"missing: {event}" for event in set(feed) - set(once)]
    found += [f"not in the feed: {event}" for event in set(once) - set(feed)]
    at = next((at for at, (expected, got) in enumerate(zip(feed, once, strict=False)) if expected != got), None)
    return found if at is None else [*found, f"at {at}: expected {feed[at]}, got {once[at]}"]


async def test_nothing_is_lost_or_doubled_behind_a_proxy(service: Service, cluster: Cluster) -> None:
    profile, seed = service.profile, service.faults.seed
    print(f"seed {seed}")
    nodes, fleet, kills, stops = service.nodes, Fleet(service.client, seed), list[str](), list[str]()
    async with Receiver() as every, Receiver() as completed:
        # Given 32 clients and two webhooks
        earlier = {one["event_id"] for one in await fleet.listed("/v1/events?")}
        for url, events in ((every.url, ["*"]), (completed.url, ["transaction.completed"])):
            await nodes.ok("POST", "/v1/webhooks", {"url": url, "events": events})
        # Stored during the registration, such as the audit log's daily head: a webhook may get these or not.
        optional = {one["event_id"] for one in await fleet.listed("/v1/events?")} - earlier
        await fleet.recruit(_AGENTS)
        noted = (await nodes.ok("GET", "/v1/audit-log?limit=1"))["data"][0]["hash"]

        # When nodes are killed and stopped, and the database is restarted or the chain's node lies, while they work
        service.faults.share = profile.lies
        work = asyncio.create_task(fleet.work())
        killing = asyncio.create_task(_kill(nodes, random.Random(seed), profile.between_kills, kills))
        stopping = asyncio.create_task(_stop(nodes, random.Random(seed), profile.between_stops, stops))
        restarting = asyncio.create_task(_restart(cluster, profile))
        await asyncio.sleep(profile.seconds)
        await restarting
        killing.cancel()
        stopping.cancel()
        await asyncio.wait({killing, stopping})
        service.faults.share = 0.0
        ended = time.monotonic()
        for name in profile.names:
            if name not in nodes.clients:
                await _revive(nodes, name)
        fleet.stop()
        await work

        # Then every request gets its answer, once, and all show what the chain has
        async with asyncio.timeout(_DECIDED):
            await fleet.finish()
        undecided = await within(ended + _DECIDED - time.monotonic(), lambda: pending(fleet))
        different = await within(ended + _DECIDED - time.monotonic(), lambda: unlike_the_chain(service, fleet))
        decided_after = time.monotonic() - ended
        landed = await history(service)
        problems = {
            "unlike the chain": different,
            "still pending": undecided,
            "contradicted by the chain": [
                *await wronged(service, fleet, landed),
                *await wronged_escrows(fleet, landed),
            ],
            "wrong answer": fleet.wrong,
            "wrong export": await export_problems(service, fleet),
        }

        # And the feed has each event once, and webhooks sent it in its order
        listed = await fleet.listed("/v1/events?")
        feed = {one["event_id"]: one for one in listed if one["event_id"] not in earlier}
        stored = cluster.execute("SELECT event_id FROM feed ORDER BY position", nodes.database)
        ids = [event for (event,) in stored if event not in earlier]
        payments = [event for event in ids if feed[event]["event"] == "transaction.completed"]
        counted = Counter(one["event_id"] for one in listed) + Counter(feed[event]["tx_id"] for event in payments)
        problems["not in the list"] = [*set(ids).symmetric_difference(feed)]
        problems["twice in the feed"] = [one for one, count in counted.items() if count > 1]
        for receiver, matching in ((every, ids), (completed, payments)):
            expected = [one for one in matching if one not in optional or one in receiver.events]
            while expected[-1] not in receiver.events:
                got = len(receiver.received)
                async with asyncio.timeout(_DELIVERED):
                    while len(receiver.received) == got:  # noqa: ASYNC110 - the service sends
                        await asyncio.sleep(0.1)
            problems[f"webhook {receiver.url}"] = _in_order(expected, receiver.events)

    # And the log of who did what is whole from the first noted head to the newest
    newest = (await nodes.ok("GET", "/v1/audit-log?limit=1"))["data"][0]["hash"]
    for head in (noted, newest):
        said = await command(
            "audit", "verify", "--head", head, "--data-dir", str(nodes.folder / "one"), **nodes.environment
        )
        assert said.startswith("Verified: ")

    logs = "".join(nodes.log(name).read_text() for name in profile.names)
    print(
        f"seed {seed}: {profile.seconds} s, {len(kills)} kills, {len(stops)} stops, "
        f"{len(profile.restarts)} restarts of PostgreSQL, {sum(service.faults.counts.values())} faults, "
        f"{fleet.requests} requests, {len(fleet.orders)} keys, {len(ids)} events, {len(every.received)} and "
        f"{len(completed.received)} webhooks; all decided after {decided_after:.0f} s; {said.strip()}\n"
        f"answers: {dict(fleet.outcomes.most_common())}"
    )
    for kind, found in problems.items():
        for one in found[:50]:
            print(f"{kind}: {one}")
    assert not any(problems.values())
    assert "Traceback" not in logs
    assert "internal_error" not in logs
    assert bool(profile.lies) == bool(service.faults.counts)
    # On a slow machine all of them may be starting when one is due.
    assert len(kills) >= profile.seconds // profile.between_kills * 3 // 4


async def test_node_that_hangs_stops_clients_and_streams_for_seconds(
    cluster: Cluster, template: str, tmp_path: Path
) -> None:
    haproxy()
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(nodes_on(cluster, template, tmp_path, usdc=1_000_000, slot_ms=60))
        url = await _behind_haproxy(stack, nodes, _THREE)
        client = await stack.enter_async_context(nodes.client_of(url))
        service, fleet = Service(nodes, client, _PROFILES["deaths"][False], Faults(1)), Fleet(client, seed=1)
        await fleet.recruit(_AGENTS)

        # Given a stream of live events from each node, and clients at work
        browser = await stack.enter_async_context(_browser(url.replace("127.0.0.1", "localhost"), nodes.key))
        streams = [await _stream(browser) for _ in _THREE]
        work = asyncio.create_task(fleet.work())
        await asyncio.sleep(3)
        assert not any(one.done() for one in streams)

        # When the node that follows the chain hangs
        hung, began = nodes.processes[nodes.holder() or "one"], time.monotonic()
        _signal(hung, signal.SIGSTOP)
        try:
            ended, still_open = await asyncio.wait(streams, timeout=_LONGEST_GAP)
            again = await _stream(browser)
            await asyncio.sleep(began + _HUNG - time.monotonic())
        finally:
            _signal(hung, signal.SIGCONT)
        await asyncio.sleep(2)
        fleet.stop()
        await work
        async with asyncio.timeout(_DECIDED):
            await fleet.finish()

        # Then the others soon answer all clients, and only its streams end, so that the browser opens another
        seen = [began, *(moment for moment in fleet.succeeded if moment >= began)]
        gap = max(later - earlier for earlier, later in itertools.pairwise(seen))
        print(f"longest gap {gap:.1f} s, slowest {fleet.slowest:.1f} s, answers: {fleet.outcomes}")
        assert gap < _LONGEST_GAP
        assert fleet.slowest < _HUNG * 3 / 4
        assert (len(ended), len(still_open), again.done()) == (1, 2, False)
        for one in (*still_open, again):
            one.cancel()

        # And nothing was done twice
        assert await within(_DECIDED, lambda: pending(fleet)) == []
        landed = await history(service)
        assert [*fleet.wrong, *await wronged(service, fleet, landed), *await wronged_escrows(fleet, landed)] == []


@contextlib.asynccontextmanager
async def _browser(base: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open a browser with an admin signed in to the dashboard."""
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        await sign_in(client, key)
        yield client


async def _stream(browser: httpx.AsyncClient) -> asyncio.Task[None]:
    """Open a stream of live events; returns the task that reads it until it ends."""
    answer = await browser.send(browser.build_request("GET", "/dashboard/stream"), stream=True)
    assert answer.status_code == 200

    async def read() -> None:
        with contextlib.suppress(httpx.TransportError):
            async for _ in answer.aiter_lines():
                pass

    return asyncio.create_task(read())
