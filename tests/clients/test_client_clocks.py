"""The built clients judge the age of a stored key by the service's clock, which the test clock or an outage may move.

A refused order is paid later under its own key. The service is `agent-vault serve` with its embedded chain.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.packages.installed import KINDS, Job, job_of
from tests.support.http import PATIENCE
from tests.support.processes import Serve, command, exit_code, serving
from tests.support.warm import COMMAND_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOUR = 3600
_DAY = 24 * _HOUR
_PAYEE = "GmaDrppBC7P5ARKV8g3djiwP89vz1jLK23V2GBjuAEGB"


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="serve")
async def _serve(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serve]:
    async with serving(tmp_path_factory.mktemp("service") / "data", COMMAND_LINE) as serve:
        yield serve


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


async def _ok(serve: Serve, method: str, path: str, body: Any = None) -> Any:
    answered = await serve.client.request(method, path, json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


@dataclass(frozen=True)
class _Clients:
    """Every kind of client, each with a store of its own, and one wallet with a policy for all."""

    serve: Serve
    jobs: Mapping[str, Job]
    tmp_path: Path
    policy_id: str
    wallet_id: str
    credentials: Mapping[str, str]

    async def pay(self, count: int = 1, **more: str) -> list[Any]:
        """Pay so many orders with each client, and return all outcomes."""
        running = (job.run("orders", str(count), **{**self._given(kind), **more}) for kind, job in self.jobs.items())
        return [one for outcomes in await asyncio.gather(*running) for one in outcomes]

    async def kill(self, kind: str) -> None:
        """Kill a client that pays 30 orders, 8 at a time, once it has stored the key of the ninth."""
        process = await self.jobs[kind].start("orders", "30", **self._given(kind))
        async with asyncio.timeout(PATIENCE):
            while len([*(self.tmp_path / kind).glob("*.json")]) < 9:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.01)
        process.kill()
        await process.communicate()
        assert process.returncode == -signal.SIGKILL

    def _given(self, kind: str) -> dict[str, str]:
        own = {"STORE": str(self.tmp_path / kind), "PREFIX": kind, "WALLET": self.wallet_id}
        return {**self.credentials, **own, "URL": self.serve.url, "TO": _PAYEE}

    async def payments(self) -> set[str]:
        """Return the ids of the wallet's payments."""
        query = f"type=payment&status=confirmed&walletId={self.wallet_id}&limit=100"
        return {one["tx_id"] for one in (await _ok(self.serve, "GET", f"/v1/transactions?{query}"))["data"]}


async def _clients(serve: Serve, folder: Path, tmp_path: Path, **rules: str) -> _Clients:
    policy = (await _ok(serve, "POST", "/v1/policies", {"name": "Clocks", **rules}))["policy_id"]
    new = {"agentId": tmp_path.name, "label": "Clocks", "policyId": policy}
    wallet = (await _ok(serve, "POST", "/v1/wallets", new))["wallet_id"]
    await _ok(serve, "POST", f"/v1/wallets/{wallet}/fund", {"amount": "10"})
    key = (await _ok(serve, "POST", "/v1/keys", {"role": "agent", "walletId": wallet, "name": "Clocks"}))["key"]
    issued = await _ok(serve, "POST", f"/v1/wallets/{wallet}/rotate-token", {"ttlSeconds": 30 * _DAY})
    credentials = {"KEY": key, "SESSION": issued["session_token"]}
    jobs = {kind: job_of(folder, kind, tmp_path) for kind in KINDS}
    return _Clients(serve, jobs, tmp_path, policy, wallet, credentials)


async def _advance(serve: Serve, seconds: int) -> None:
    await _ok(serve, "POST", "/v1/test/clock", {"seconds": seconds})


def _ids(outcomes: list[Any]) -> set[str]:
    assert {one.get("status") for one in outcomes} == {"confirmed"}, outcomes
    return {one["tx_id"] for one in outcomes}


def _errors(outcomes: list[Any]) -> set[str]:
    return {one["error"] for one in outcomes}


async def test_killed_client_does_not_pay_after_a_day_on_the_test_clock(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    # Given clients that are killed while they pay, and repeated
    clients = await _clients(serve, folder, tmp_path)
    await asyncio.gather(*(clients.kill(kind) for kind in KINDS))
    paid = _ids(await clients.pay(30))
    assert await clients.payments() == paid
    assert len(paid) == 30 * len(KINDS)

    # When the test clock passes their keys' lifetime, then no order is repeated
    await _advance(serve, _DAY + _HOUR)
    late = await clients.pay(30)
    assert _errors(late) == {"OutcomeUnknown"}
    assert await clients.payments() == paid

    # And new orders are paid and repeated as usual, although the host's clock is a day behind
    new = _ids(await clients.pay(PREFIX="new"))
    assert _ids(await clients.pay(PREFIX="new")) == new
    assert await clients.payments() == paid | new


async def test_refused_order_ends_with_the_test_clock(serve: Serve, folder: Path, tmp_path: Path) -> None:
    clients = await _clients(serve, folder, tmp_path, maxPerTx="0.005")
    assert _errors(await clients.pay()) == {"PolicyViolation"}

    await _advance(serve, 22 * _HOUR)
    assert _errors(await clients.pay()) == {"PolicyViolation"}
    await _advance(serve, _HOUR)

    assert _errors(await clients.pay()) == {"OutcomeUnknown"}


@pytest.mark.parametrize("ahead", [3 * _HOUR, -3 * _HOUR, 25 * _HOUR])
async def test_wrong_clock_of_the_host_changes_nothing(serve: Serve, folder: Path, tmp_path: Path, ahead: int) -> None:
    clients = await _clients(serve, folder, tmp_path)

    paid = _ids(await clients.pay(AHEAD=str(ahead)))

    assert _ids(await clients.pay()) == paid
    await _advance(serve, 23 * _HOUR)
    assert _errors(await clients.pay(AHEAD=str(-ahead))) == {"OutcomeUnknown"}
    assert await clients.payments() == paid


async def test_reset_of_the_test_clock_does_not_pay_twice(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data, COMMAND_LINE) as serve:
        clients = await _clients(serve, folder, tmp_path)
        paid = _ids(await clients.pay())
        await _advance(serve, _DAY)
        _ids(await clients.pay(PREFIX="later"))
        serve.process.send_signal(signal.SIGTERM)
        assert await exit_code(serve.process) == 0

    await command("clock", "reset", "--data-dir", str(data))

    async with serving(data, COMMAND_LINE) as serve:
        clients = replace(clients, serve=serve)
        assert _ids(await clients.pay()) == paid
        assert _errors(await clients.pay(PREFIX="later")) == {"OutcomeUnknown"}
        assert await clients.payments() == paid


async def test_refused_order_is_paid_later_under_its_key(serve: Serve, folder: Path, tmp_path: Path) -> None:
    # Given orders that the policy refuses
    clients = await _clients(serve, folder, tmp_path, maxPerTx="0.005")
    refused = await clients.pay()
    assert _errors(refused) == {"PolicyViolation"}
    assert _errors(await clients.pay()) == {"PolicyViolation"}

    # When the policy allows them, then the same orders are paid, once and under the same keys
    await _ok(serve, "PATCH", f"/v1/policies/{clients.policy_id}", {"maxPerTx": "1"})
    paid = await clients.pay()
    again = await clients.pay()

    assert _ids(again) == _ids(paid) == await clients.payments()
    keys = [{one["idempotency_key"] for one in outcomes} for outcomes in (refused, paid, again)]
    assert keys[0] == keys[1] == keys[2]
    assert len(keys[0]) == len(KINDS)
