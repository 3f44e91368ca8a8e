"""A node that lies and forgets, between service and chain: nothing is paid twice, denied, refused wrongly or lost.

In one process, and as in production: chain, proxy and service apart, the service killed again and again. With `--full`
there are three runs of eight minutes.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable
from app.chain.transport import HttpTransport
from app.core.money import parse_usdc
from app.server.health import Health
from app.submission.recovery import Recovery
from app.verifier.verify import verify
from idl.codec import load
from indexer import Indexer, StoredEvent
from tests.recovery.deployment import Deployment, deployed
from tests.recovery.fleet import Fleet
from tests.support.escrows import A2A, OUTPUT, agent, of, shows_output, terms
from tests.support.faults import Faults, FaultyTransport
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_AGENTS = 8
#: Seconds after the end of the faults until the rows equal the chain's events, and until nothing is pending.
_EQUAL, _DECIDED = 60.0, 180.0
#: Seconds in which the last answers reach the rows.
_SETTLED = 10.0


@dataclass(frozen=True, slots=True)
class _Profile:
    """The lives of the service, each of so many seconds, the share of false answers, and the milliseconds of a slot."""

    seeds: tuple[int, ...]
    lives: int
    lifetime: float
    share: float
    slot_ms: int


#: By `--full`. Short slots let transactions expire soon.
_PROFILES = {False: _Profile((1,), 2, 9.0, 0.2, 100), True: _Profile((1, 2, 3), 16, 30.0, 0.12, 400)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test with the seeds of the profile."""
    if "chaos_seed" in metafunc.fixturenames:
        metafunc.parametrize("chaos_seed", _PROFILES[metafunc.config.getoption("--full")].seeds)


async def _history(deployment: Deployment) -> list[StoredEvent]:
    """Return the program's events, read from the chain past the faults and past the service."""
    transport = HttpTransport(deployment.chain_url)
    truth = Indexer(transport=transport, codec=load(), db_path=deployment.folder / "truth.db")
    try:
        await truth.catch_up()
        return await truth.changes(0, 10**9)
    finally:
        await truth.stop()
        await transport.aclose()


def _moved(events: list[StoredEvent], name: str) -> Counter[int]:
    """Return how often each amount left a vault by events of this name."""
    return Counter(event.data["amount"] for event in events if event.name == name)


async def _within(seconds: float, differences: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Return the differences that are left after this time, none as soon as there is none."""
    end = time.monotonic() + seconds
    while (found := await differences()) and time.monotonic() < end:  # noqa: ASYNC110 - asks over HTTP
        await asyncio.sleep(0.5)
    return found


async def _unlike_the_chain(deployment: Deployment, fleet: Fleet) -> list[str]:
    """Return how the rows differ from the chain's events, and the wallets from their accounts."""
    events = await _history(deployment)
    found = []
    for type_, name in (("payment", "PaymentExecuted"), ("escrow_lock", "EscrowCreated")):
        rows = await fleet.listed(f"/v1/transactions?type={type_}&status=confirmed")
        shown = Counter(parse_usdc(row["amount"]) for row in rows)
        landed = _moved(events, name)
        found += [f"{type_} {micro}: {count} rows too many" for micro, count in (shown - landed).items()]
        found += [f"{type_} {micro}: {count} rows missing" for micro, count in (landed - shown).items()]
    for one in fleet.agents:
        shows = await fleet.read(f"/v1/wallets/{one.id}")
        vault = await deployment.chain.account(shows["chain_address"])
        assert vault is not None
        account = vault.decode(load()).data
        holds = await deployment.chain.token_balance(Pubkey.from_string(str(account["tokens"])))
        if parse_usdc(shows["usdc_balance"], allow_zero=True) != holds:
            found.append(f"wallet {one.id} shows {shows['usdc_balance']}, its vault holds {holds}")
        if (shows["status"] == "frozen") != bool(account["frozen"]):
            found.append(f"wallet {one.id} shows {shows['status']}, frozen on the chain: {account['frozen']}")
    return found


async def _export_problems(deployment: Deployment, fleet: Fleet) -> list[str]:
    """Return what `agent-vault verify` finds wrong with an export of everything."""
    made = (await deployment.client.post("/v1/transactions/export", json={"format": "json"})).json()
    async with asyncio.timeout(_EQUAL):
        path = f"/v1/transactions/exports/{made['export_id']}"
        while (ready := await fleet.read(path))["status"] != "ready":  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.2)
    export = deployment.folder / "export.json"
    export.write_bytes((await deployment.client.get(ready["download_url"])).content)
    transport = HttpTransport(deployment.chain_url)
    try:
        return (await verify(export, transport, None)).problems
    finally:
        await transport.aclose()


async def _wronged(deployment: Deployment, fleet: Fleet, events: list[StoredEvent]) -> list[str]:
    """Return the orders whose last answer is not what the chain has."""
    landed = _moved(events, "PaymentExecuted") + _moved(events, "EscrowCreated")
    signatures = {event.signature for event in events}
    found = [f"paid {count} times: 0.{micro:06}" for micro, count in landed.items() if count > 1 and micro < 10**6]
    for order in fleet.orders:
        if order.answer is None:
            found.append(f"no final answer: {order}")
        if not order.micro or order.answer is None:
            continue
        told = order.answer.json()
        if not order.accepted and landed[order.micro]:
            found.append(f"refused, but it landed: {order}")
        elif order.accepted and told["status"] == "pending":
            shown = await deployment.client.get(f"{order.path}/{told['escrow_id' if order.path == A2A else 'tx_id']}")
            # The next escrow of a wallet has the id of one that was never made.
            missing = shown.status_code == 404 or shown.json()["tx_id"] != told["tx_id"]
            missing = missing or shown.json()["status"] in {"failed", "pending"}
            if missing == bool(landed[order.micro]) or (shown.status_code == 404 and order.path == "/v1/payments"):
                found.append(f"{order}, now {shown.text}, on the chain {landed[order.micro]} times")
        elif order.accepted and not landed[order.micro]:
            found.append(f"accepted, but it is not on the chain: {order}")
        elif order.accepted and order.path == "/v1/payments" and told["tx_signature"] not in signatures:
            found.append(f"accepted with another signature than the chain's: {order}")
    return found


async def _wronged_escrows(fleet: Fleet, events: list[StoredEvent]) -> list[str]:
    """Return the completions and disputes whose last answer is not what the chain has, and the escrows shown wrong."""
    ended = {
        name: {str(event.data["escrow"]) for event in events if event.name == event_name}
        for name, event_name in (("complete", "EscrowSettled"), ("dispute", "EscrowDisputed"))
    }
    found = []
    for order in fleet.orders:
        _, escrow, step = order.path.rsplit("/", 2)
        if step in ended and order.accepted != (fleet.escrows[escrow] in ended[step]):
            found.append(f"the chain has it otherwise: {order}")
    for escrow, address in fleet.escrows.items():
        on_chain = (
            "released" if address in ended["complete"] else "disputed" if address in ended["dispute"] else "locked"
        )
        shown = (await fleet.read(f"{A2A}/{escrow}"))["status"]
        if shown != on_chain:
            found.append(f"{escrow} is shown as {shown}, on the chain it is {on_chain}")
    return found


async def _pending(fleet: Fleet) -> list[str]:
    rows = await fleet.listed("/v1/transactions?status=pending")
    escrows = await fleet.listed(f"{A2A}?status=pending")
    return [str(row) for row in rows + escrows]


async def test_lies_and_kills_leave_service_and_chain_agreed(
    tmp_path: Path, request: pytest.FixtureRequest, chaos_seed: int
) -> None:
    profile = _PROFILES[request.config.getoption("--full")]
    faults = Faults(chaos_seed, longest=11.0)
    async with deployed(tmp_path, faults, slot_ms=profile.slot_ms) as deployment:
        # Given agents at work
        fleet = Fleet(deployment.client, chaos_seed)
        await fleet.recruit(_AGENTS)
        work = asyncio.create_task(fleet.work())

        # When the node lies and the service is killed, again and again
        faults.share = profile.share
        for life in range(profile.lives):
            if life:
                await deployment.restart()
            await asyncio.sleep(profile.lifetime)
        faults.share = 0.0
        ended = time.monotonic()
        fleet.stop()
        await work

        # Then every request gets its answer, and all show what the chain has
        async with asyncio.timeout(_DECIDED), asyncio.TaskGroup() as tasks:
            finishing = tasks.create_task(fleet.finish())
            different = await _within(ended + _EQUAL - time.monotonic(), lambda: _unlike_the_chain(deployment, fleet))
            equal_after = time.monotonic() - ended
            await finishing
        pending = await _within(ended + _DECIDED - time.monotonic(), lambda: _pending(fleet))
        decided_after = time.monotonic() - ended
        different += await _within(_SETTLED, lambda: _unlike_the_chain(deployment, fleet))
        events = await _history(deployment)
        wronged = [*await _wronged(deployment, fleet, events), *await _wronged_escrows(fleet, events)]
        exported = await _export_problems(deployment, fleet)
        log = deployment.logged()
        print(
            f"seed {chaos_seed}: {fleet.requests} requests, {faults.requests} calls of the node, "
            f"{sum(faults.counts.values())} faults, {deployment.kills} kills, {len(deployment.failed_starts)} failed "
            f"starts; equal after {equal_after:.0f} s, nothing pending after {decided_after:.0f} s\n"
            f"answers: {dict(fleet.outcomes.most_common())}\nfaults: {dict(faults.counts.most_common())}"
        )
        problems = {
            "unlike the chain": different,
            "still pending": pending,
            "contradicted by the chain": wronged,
            "wrong answer": fleet.wrong,
            "wrong export": exported,
        }
        for kind, found in problems.items():
            for one in found:
                print(f"{kind}: {one}")
        assert not any(problems.values())
        assert "Traceback" not in log
        assert "internal_error" not in log
        assert sum(faults.counts.values()) > profile.lives * profile.lifetime


@pytest.mark.parametrize("seed", range(3))
async def test_false_answers_are_503_in_every_request(
    own_world: ServiceWorld, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world, funds=None)
    recipients = [str(Pubkey.new_unique()) for _ in range(3)]
    made = await world.policy(maxPerTx="10", allowedRecipients=recipients)
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.5)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    faults = Faults(seed)
    world.line.through = FaultyTransport(world.line.through, faults)
    _app: Any = world.client._transport
    _app.app.state.health = Health(world.service, remember=0.0)
    answers = []

    async def call(method: str, where: str, body: Any = None) -> None:
        answers.append(await world.call(method, where, body))

    for round_ in range(3):
        escrow = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")
        faults.share = 0.25
        answers += [await world.pay(wallet, to, "0.01") for _ in range(3)]
        answers.append(await world.pay(wallet, to, "1000"))
        answers.append(await receiving.call("POST", of(escrow, "complete"), shows_output()))
        answers.append(await paying.call("POST", A2A, terms(paying, receiving, "0.1")))
        await call("POST", f"{path}/fund", {"amount": "1", "currency": "USDC"})
        await call("POST", f"{path}/rotate-token", {})
        await call("PATCH", path, {"status": "frozen" if round_ % 2 else "active"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"maxPerTx": f"{round_ + 1}"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"allowedRecipients": recipients[: round_ % 3 + 1]})
        await call("GET", f"/v1/policies/{made['policy_id']}")
        await call("GET", f"/v1/policies/{made['policy_id']}/audit-log")
        await call("POST", f"/v1/policies/{made['policy_id']}/preview", {"maxPerTx": "1"})
        simulated = {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}
        await call("POST", "/v1/payments/simulate", simulated)
        await call("GET", "/readyz")
        with contextlib.suppress(*Recovery.outages):
            await world.service.part(Recovery).recover()
        with contextlib.suppress(ChainUnavailable):
            await world.keeper().tick()
        faults.share = 0.0
        await world.service.part(Recovery).recover()
        await world.catch_up()

    bad = [one for one in answers if one.status_code >= 500 and one.status_code != 503]
    assert [one.text for one in bad] == []
    unavailable = [one for one in answers if one.status_code == 503]
    assert unavailable
    assert {one.headers.get("retry-after") for one in unavailable} == {"1"}
    assert {one.json()["error"]["code"] for one in unavailable} <= {"chain_unavailable", "not_ready"}
    assert "Traceback" not in "".join(capsys.readouterr())
