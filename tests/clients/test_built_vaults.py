"""The built clients of both languages buy by x402 and MPP, lock money in escrow and verify webhooks.

The paid resources are those of the public packages.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.webhooks._signing import new_secret, signature_headers
from tests.clients.packages.installed import CLIENTS, KINDS, Job, compiled, job_of, python_package, typescript_package
from tests.support.http import served, site
from tests.support.webhooks import Receiver
from tests.x402.conftest import Buyer, Market, opened
from tests.x402.mpp import shop
from tests.x402.test_mpp import Settling

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="market")
async def _market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    async with opened(tmp_path_factory.mktemp("market"), x402_timeout=2) as found:
        yield found


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


async def _each(folder: Path, tmp_path: Path, buyer: Buyer, url: str, mode: str, *arguments: str) -> list[Any]:
    """Run a job on every client at once, and return what they print."""
    given = {"URL": url, "KEY": buyer.key, "SESSION": buyer.session, "STORE": str(tmp_path / "store")}
    return await asyncio.gather(*(job_of(folder, kind, tmp_path).run(mode, *arguments, **given) for kind in KINDS))


async def test_clients_buy_from_x402_and_mpp_servers(market: Market, folder: Path, tmp_path: Path) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()

    async with served(market.world) as url, market.shop() as x402, shop(market) as mpp:
        every = await _each(folder, tmp_path, buyer, url, "buy", f"{x402}/weather", f"{mpp}/weather?sponsored=1")

    for said in every:
        assert [(one["protocol"], one["price"], one["status"], one["key"]) for one in said] == [
            ("x402", "0.01", "confirmed", True),
            ("mpp", "0.01", "confirmed", True),
        ]
        assert all("sunny" in one["body"] for one in said)
    assert len({one["tx_id"] for said in every for one in said}) == 6
    assert await market.received() - before == 60_000


async def test_fetch_without_order_repeats_while_its_payment_is_pending(
    market: Market, folder: Path, tmp_path: Path
) -> None:
    # Given a server that takes the payment and keeps its first answer back
    buyer, before = await market.buyer(allowAllowances=True), await market.received()
    settling = Settling(market, len(KINDS))

    async with served(market.world) as url, site(settling.answer) as resource:
        every = await _each(folder, tmp_path, buyer, url, "buy", f"{resource}/")
        settling.released.set()

    assert [(one["status"], one["body"]) for [one] in every] == [("confirmed", "yours")] * 3
    assert len(settling.given) == 3
    assert await market.received() - before == 30_000


async def test_refusal_of_a_fetch_names_the_rule_and_the_key(market: Market, folder: Path, tmp_path: Path) -> None:
    buyer, before = await market.buyer(allowAllowances=True, maxPerTx="0.005"), await market.received()

    async with served(market.world) as url, shop(market) as mpp:
        every = await _each(folder, tmp_path, buyer, url, "refused", f"{mpp}/weather")

    facts = {"error": "PolicyViolation", "rule": "max_per_tx", "limit": "0.005", "attempted": "0.01"}
    for said in every:
        assert {name: said[name] for name in facts} == facts
        assert said["idempotency_key"]
    assert await market.received() == before


async def test_clients_lock_money_for_a_task(market: Market, folder: Path, tmp_path: Path) -> None:
    buyer, worker = await market.buyer(), await market.world.wallet()

    async with served(market.world) as url:
        every = await _each(folder, tmp_path, buyer, url, "lock", worker["wallet_id"])

    assert every == [{"status": "locked", "amount": "1.00", "to_wallet": worker["wallet_id"]}] * 3


def _request(secret: str, body: bytes, *keys: str, age: int = 0, now: int) -> str:
    headers = signature_headers(body, message_id="msg_1", timestamp=now - age, keys=keys or [secret])
    return json.dumps([secret, dict(headers), base64.b64encode(body).decode()])


async def test_clients_verify_the_requests_of_a_webhook(market: Market, folder: Path, tmp_path: Path) -> None:
    # Given a request that the service sends
    buyer = await market.buyer()
    async with Receiver() as receiver:
        made = await market.world.ok("POST", "/v1/webhooks", {"url": receiver.url, "events": ["*"]})
        await market.world.ok("POST", f"/v1/webhooks/{made['webhook_id']}/test", {})
        await receiver.wait_for(1)
    secret, sent = made["signing_secret"], receiver.received[0]
    real = json.dumps([secret, sent.headers, base64.b64encode(sent.body).decode()])
    now = int(sent.headers["webhook-timestamp"])

    # And requests that are signed by a new and an old secret, forged, changed and old
    event, other = b'{"event": "wallet.frozen"}', new_secret()
    rotated = _request(secret, event, other, secret, now=now)
    forged = _request(secret, event, other, now=now)
    old = _request(secret, event, age=3600, now=now)
    changed = json.dumps([secret, json.loads(rotated)[1], base64.b64encode(event + b" ").decode()])
    unsigned = json.dumps([secret, {}, base64.b64encode(event).decode()])

    every = await _each(
        folder, tmp_path, buyer, "http://127.0.0.1:9", "verify", real, rotated, forged, old, changed, unsigned
    )

    assert every == [[sent.json["event"], "wallet.frozen", *["invalid"] * 4]] * 3


def _samples(guide: str, language: str) -> list[str]:
    """Return the samples of a guide in a language."""
    text = (CLIENTS.parent / f"app/docs/guides/{guide}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _program(folder: Path, tmp_path: Path, language: str, source: str) -> Job:
    """Return the job that runs a sample on the built client."""
    if language == "python":
        (tmp_path / "guide.py").write_text(source)
        return Job((python_package(folder), tmp_path / "guide.py"), tmp_path)
    return Job(("node", compiled(typescript_package(folder), tmp_path.name, source)), tmp_path)


@pytest.mark.parametrize("language", ["python", "ts"])
async def test_webhook_is_registered_as_shown(market: Market, folder: Path, tmp_path: Path, language: str) -> None:
    job = _program(folder, tmp_path, language, _samples("webhooks", language)[0])

    async with served(market.world) as url:
        assert await job.output(URL=url, ADMIN_KEY=market.world.keys["admin"]) == "enabled\n"


@pytest.mark.parametrize("language", ["python", "ts"])
async def test_samples_of_the_guide_run_as_they_are_shown(
    market: Market, folder: Path, tmp_path: Path, language: str
) -> None:
    job = _program(folder, tmp_path, language, "\n".join(_samples("clients", language)))

    async with served(market.world) as url, market.shop() as resource:
        said = await job.output(URL=url, KEY=market.world.keys["admin"], RESOURCE=f"{resource}/weather")

    lines = said.replace("undefined", "None").replace("[ ", "[").replace(" ]", "]").splitlines()
    assert lines == [
        "confirmed",
        "max_per_tx 5.00 6.00 None",
        "x402 0.01 confirmed 200",
        "['0.01', '6.00', '4.50', '10.00']",
    ], said
