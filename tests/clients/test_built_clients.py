"""Uses the clients as a developer gets them: built, installed into an empty environment, against a running service.

The service is `agent-vault serve`. A proxy drops its first answer to each key, and another falsifies its chain.
With `--full` the storm lasts two minutes.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients import generate
from tests.clients.packages.answers import DEADLINE, OUTCOMES, Answers
from tests.clients.packages.installed import CLIENTS, KINDS, Job, job_of
from tests.mcp.lossy import Shop, shop
from tests.support.http import site
from tests.support.needs import skip_or_fail

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DAY = 24 * 3600
_PAYEE = "GmaDrppBC7P5ARKV8g3djiwP89vz1jLK23V2GBjuAEGB"


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="lossy")
async def _lossy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with shop(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


def _agent(lossy: Shop) -> dict[str, str]:
    key = lossy.headers["Authorization"].removeprefix("Bearer ")
    return {"URL": lossy.url, "KEY": key, "SESSION": lossy.headers["Session-Token"], "TO": lossy.to}


async def _quick_start(lossy: Shop, job: Job, agent_id: str) -> None:
    deployment = lossy.deployment
    key = deployment.client.headers["Authorization"].removeprefix("Bearer ")
    said = await job.run("quickstart", agent_id, URL=deployment.url, KEY=key, TO=_PAYEE)

    refused = said.pop("refused")
    assert said == {"balance": "10.00", "status": "confirmed", "rows": ["6.00", "4.50", "10.00"]}
    assert {name: refused[name] for name in ("error", "code", "rule", "limit", "attempted", "remedy")} == {
        "error": "PolicyViolation",
        "code": "policy_violation",
        "rule": "max_per_tx",
        "limit": "5.00",
        "attempted": "6.00",
        "remedy": True,
    }


async def test_python_package_runs_the_quick_start(lossy: Shop, folder: Path, tmp_path: Path) -> None:
    await _quick_start(lossy, job_of(folder, "sync", tmp_path), "python")


@pytest.mark.parametrize("node", ["node", "22", "24"])
async def test_typescript_package_runs_the_quick_start(lossy: Shop, folder: Path, tmp_path: Path, node: str) -> None:
    path = node if node == "node" else CLIENTS.parent / f"tests/clients/nodes/node_modules/node-{node}/bin/node"
    if isinstance(path, Path) and not path.exists():
        reason = "needs Linux on x86-64 and `npm ci --prefix tests/clients/nodes`"
        skip_or_fail(reason)

    await _quick_start(lossy, job_of(folder, "typescript", tmp_path, path), f"typescript-{node}")


async def _each(folder: Path, tmp_path: Path, mode: str, *arguments: str, **environment: str) -> list[Any]:
    """Run a job on every client at once, each with orders and a store of its own. Return what they print."""

    def run(kind: str) -> Awaitable[Any]:
        own = {"STORE": str(tmp_path / kind), "PREFIX": f"{tmp_path.name}-{kind}"}
        return job_of(folder, kind, tmp_path).run(mode, *arguments, **{**own, **environment})

    return await asyncio.gather(*map(run, KINDS))


def _paid(said: list[Any]) -> int:
    """Return the number of payments, all of which must be confirmed."""
    outcomes = [one for of_a_client in said for one in of_a_client]
    assert {one.get("status") for one in outcomes} == {"confirmed"}, outcomes
    return len({one["tx_id"] for one in outcomes})


async def test_lost_answers_neither_lose_nor_double_a_payment(lossy: Shop, folder: Path, tmp_path: Path) -> None:
    had, lost = await lossy.received(), len(lossy.arrivals)

    said = await _each(folder, tmp_path, "orders", "34", **_agent(lossy))

    assert _paid(said) == 102
    assert len(lossy.arrivals) >= lost + 102
    assert await lossy.received() == had + 102


async def test_storm_neither_loses_nor_doubles_a_payment(
    lossy: Shop, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Given a chain that fails most requests, so that the service answers 503, for two minutes with --full
    full = request.config.getoption("--full")
    faults, seconds = lossy.deployment.faults, 120 if full else 3
    had, unavailable = await lossy.received(), lossy.statuses[503]
    faults.share, said, batches = 0.8, list[Any](), 0
    end = asyncio.get_running_loop().call_later(seconds, setattr, faults, "share", 0.0)
    try:
        # When the clients pay orders until the storm has ended
        while faults.share:
            (own := tmp_path / str(batches)).mkdir()
            said += await _each(folder, own, "orders", "8", DEADLINE="300", **_agent(lossy))
            batches += 1
    finally:
        end.cancel()
        faults.share = 0.0
    unavailable = lossy.statuses[503] - unavailable
    print(f"{24 * batches} orders in {seconds} seconds: {unavailable} answers with 503, {faults.counts.total()} faults")

    # Then each order is paid once
    assert _paid(said) == 24 * batches
    assert await lossy.received() == had + 24 * batches
    assert faults.counts
    assert unavailable or not full


async def test_killed_client_pays_once_and_not_after_a_day(lossy: Shop, folder: Path, tmp_path: Path) -> None:
    # Given clients that are killed after some of their orders have arrived
    had, before = await lossy.received(), len(lossy.arrivals)
    own = [{"STORE": str(tmp_path / kind), "PREFIX": f"{tmp_path.name}-{kind}"} for kind in KINDS]
    jobs = [job_of(folder, kind, tmp_path) for kind in KINDS]
    running = [await job.start("orders", "8", **one, **_agent(lossy)) for job, one in zip(jobs, own, strict=True)]
    while len(lossy.arrivals) < before + 8:  # noqa: ASYNC110 - the proxy has no other signal
        await asyncio.sleep(0.01)
    for process in running:
        process.kill()
        await process.communicate()

    # When they are repeated with their stores, then each order is paid once
    assert _paid(await _each(folder, tmp_path, "orders", "8", **_agent(lossy))) == 24
    assert await lossy.received() == had + 24

    # And when they are repeated a day later by the host's clock, since the proxy hides the service's, then none is sent
    arrivals = lossy.arrivals.total() - lossy.arrivals[""]
    late = {"AHEAD": str(_DAY), "WALLET": lossy.wallet_id}
    said = await _each(folder, tmp_path, "orders", "8", **late, **_agent(lossy))
    facts = {"error": "OutcomeUnknown", "wallet_id": lossy.wallet_id, "payee": lossy.to, "amount": "0.01"}
    for outcomes in said:
        assert [{name: one[name] for name in facts} for one in outcomes] == [facts] * 8
    assert lossy.arrivals.total() - lossy.arrivals[""] == arrivals


async def _asked(folder: Path, tmp_path: Path, kind: str, *cases: str, **environment: str) -> tuple[Any, Answers]:
    """Return what a client says about these answers, and what it sent."""
    answers = Answers()
    async with site(answers.answer) as url:
        given = {"URL": url, "KEY": "avk_test", "SESSION": "avs_test", "TO": _PAYEE, "WALLET": "wal_1"}
        given |= {"STORE": str(tmp_path / kind), "DEADLINE": str(DEADLINE)}
        said = await job_of(folder, kind, tmp_path).run("cases", *cases, **{**given, **environment})
    return said, answers


async def test_clients_understand_every_kind_of_answer(folder: Path, tmp_path: Path) -> None:
    every = await asyncio.gather(*(_asked(folder, tmp_path, kind, *OUTCOMES) for kind in KINDS))

    for kind, (said, answers) in zip(KINDS, every, strict=True):
        # Then each outcome is the expected one, after the expected number of requests under one key
        for name, (expected, count) in OUTCOMES.items():
            keys = answers.keys[name]
            assert {key: said[name].get(key) for key in expected} == expected, (kind, name)
            assert len(keys) == count or (count is None and len(keys) > 1), (kind, name)
            # And the caller learns the key, with which a repetition has no second effect
            assert {*keys} == {said[name]["idempotency_key"]}, (kind, name)
        # And the client has never claimed that its caller checked anything
        sent = {field for body in answers.bodies for field in body}
        assert sent.isdisjoint({"afterRestore", "after_restore"}), kind
        assert sent.isdisjoint({"allowUnverifiedRecipient", "allow_unverified_recipient"}), kind


async def test_key_is_not_sent_again_after_its_lifetime(folder: Path, tmp_path: Path) -> None:
    # Given a service that is down, and a clock on which 23 hours pass within two seconds
    fast = {"SPEED": "50000", "DEADLINE": "60"}
    every = await asyncio.gather(*(_asked(folder, tmp_path, kind, "down", **fast) for kind in KINDS))

    for said, answers in every:
        outcome = said["down"]
        facts = {"error": "OutcomeUnknown", "wallet_id": "wal_1", "payee": _PAYEE, "amount": "0.01"}
        assert {name: outcome[name] for name in facts} == facts
        assert {*answers.keys["down"]} == {outcome["idempotency_key"]}


async def test_clock_that_was_moved_back_stops_a_repetition(folder: Path, tmp_path: Path) -> None:
    every = await asyncio.gather(*(_asked(folder, tmp_path, kind, "paid") for kind in KINDS))
    assert {said["paid"]["status"] for said, _ in every} == {"confirmed"}

    late = await asyncio.gather(*(_asked(folder, tmp_path, kind, "paid", AHEAD="-3600") for kind in KINDS))

    for said, answers in late:
        assert said["paid"]["error"] == "OutcomeUnknown"
        assert not answers.keys


async def test_each_operation_is_a_method_of_the_typescript_client(folder: Path, tmp_path: Path) -> None:
    sent = await job_of(folder, "typescript", tmp_path).run("operations")

    paths = json.loads(json.dumps(generate.document()))["paths"]
    expected = {f"{method.upper()} {re.sub(r'{.+?}', '{}', path)}" for path in paths for method in paths[path]}
    assert set(sent) == expected


async def test_unwritable_store_stops_the_payment(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = {"STORE": str(tmp_path / "file/store")}
    every = await asyncio.gather(*(_asked(folder, tmp_path, kind, "paid", **store) for kind in KINDS))

    for said, answers in every:
        assert said["paid"]["error"] == "StoreError"
        assert not answers.keys
