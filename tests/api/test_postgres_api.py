"""A whole service on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from app.access.request_log import RequestLog
from app.commands.main import main
from app.database.migrations import REVISIONS
from app.database.postgres._statements import StatementResult
from app.database.postgres.database import PostgresDatabase
from tests.support.commits import Commit, commit_by
from tests.support.postgres import Cluster
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", name="url")
def _url(cluster: Cluster, template: str) -> str:
    return cluster.url(cluster.database(template))


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="world")
async def _world(url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    async with ServiceWorld(tmp_path_factory.mktemp("service"), database_url=url) as opened:
        yield opened


@pytest.fixture(name="own_cluster")
def _own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for a test that stops it."""
    yield cluster
    cluster.restart()


async def _recovered(world: ServiceWorld) -> None:
    """Wait until the service has noticed that the server is back, and has compared its commits with it."""
    async with asyncio.timeout(30):
        while (await world.call("POST", "/v1/policies", {"name": "recovered"})).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_payment_is_made_once_and_listed(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    first = await world.pay(wallet, payee, "1.50", headers={"Idempotency-Key": "lunch"})
    again = await world.pay(wallet, payee, "1.50", headers={"Idempotency-Key": "lunch"})

    assert first.json()["status"] == "confirmed", first.text
    assert again.json() == first.json()
    listed = await world.ok("GET", f"/v1/transactions?wallet_id={wallet['wallet_id']}&type=payment")
    assert [one["tx_id"] for one in listed["data"]] == [first.json()["tx_id"]]
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert shown["usdc_balance"] == "98.50"
    assert not (world.settings.data_dir / "agent-vault.db").exists()


async def test_repetition_beside_an_altered_one_gets_its_answer(world: ServiceWorld) -> None:
    # The database is asked in a thread, so the two are under way together.
    wallet, payee = await world.wallet(), await world.payee()
    key = {"Idempotency-Key": "beside"}
    first = await world.pay(wallet, payee, "1.50", headers=key)
    altered, again = await asyncio.gather(
        world.pay(wallet, payee, "1.51", headers=key), world.pay(wallet, payee, "1.50", headers=key)
    )

    error_of(altered, 409, "idempotency_conflict")
    assert again.json() == first.json()


async def test_audit_log_is_narrowed_by_all_its_columns(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    [entry] = (await world.ok("GET", f"/v1/audit-log?object={wallet['wallet_id']}"))["data"]
    narrow = f"action=wallet.create&actor={entry['actor']['type']}:{entry['actor']['id']}&object={wallet['wallet_id']}"

    assert (await world.ok("GET", f"/v1/audit-log?{narrow}"))["data"] == [entry]


async def test_payments_at_the_same_time_are_all_made(world: ServiceWorld) -> None:
    wallets, payee = [await world.wallet(funds="10") for _ in range(4)], await world.payee()
    answers = await asyncio.gather(*(world.pay(one, payee, "0.25") for one in wallets for _ in range(4)))

    assert [one.json().get("status") for one in answers] == ["confirmed"] * 16
    assert await world.balance(payee) == 4_000_000
    feed = await world.ok("GET", "/v1/events?type=transaction.completed&limit=100")
    ids = [one["event_id"] for one in feed["data"]]
    assert len(ids) == len(set(ids)) >= 16


async def test_refusal_freeze_and_policy_are_as_on_sqlite(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5.00")
    wallet, payee = await world.wallet(policy["policy_id"]), await world.payee()

    error = error_of(await world.pay(wallet, payee, "6"), 402, "policy_violation")
    assert error["violation"]["rule"] == "max_per_tx"
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    error_of(await world.pay(wallet, payee, "1"), 422, "wallet_frozen")
    blocked = await world.ok("GET", "/v1/transactions?status=blocked")
    assert blocked["data"][0]["amount"] == "6.00"
    log = await world.ok("GET", "/v1/audit-log?action=wallet.freeze")
    assert log["data"][0]["object"] == wallet["wallet_id"]


@pytest.mark.parametrize(
    ("path", "code"), [("/v1/wallets/wal_%00", "wallet_not_found"), ("/v1/policies/%00", "policy_not_found")]
)
async def test_path_with_a_nul_names_nothing(world: ServiceWorld, path: str, code: str) -> None:
    error_of(await world.call("GET", path), 404, code)


async def test_every_list_pages_to_its_end(world: ServiceWorld) -> None:
    # Refusals of earlier requests add their event now, not between two pages.
    await world.service.part(RequestLog).tick()
    for path in ("wallets", "transactions", "events", "audit-log"):
        whole = await world.ok("GET", f"/v1/{path}?limit=100")
        found, cursor = [], ""
        while True:
            page = await world.ok("GET", f"/v1/{path}?limit=3{cursor}")
            found += page["data"]
            if not page["has_more"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == whole["data"], path


async def test_restart_of_the_server_is_503_and_then_over(world: ServiceWorld, own_cluster: Cluster) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    headers = {"Idempotency-Key": "during the restart"}
    own_cluster.stop()
    answer = await world.pay(wallet, payee, "1", headers=headers)
    error_of(answer, 503, "storage_unavailable")
    assert answer.headers["retry-after"]
    own_cluster.start()

    async with asyncio.timeout(30):
        while (answer := await world.pay(wallet, payee, "1", headers=headers)).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert answer.json()["status"] == "confirmed", answer.text
    assert await world.balance(payee) == 1_000_000


async def test_payment_whose_commit_is_in_doubt_is_made_once(
    world: ServiceWorld, own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _recovered(world)
    wallet, payee = await world.wallet(), await world.payee()
    headers = {"Idempotency-Key": "doubt"}
    done: list[bool] = []

    def restart_once(commit: Commit, driver: Any) -> StatementResult:
        claimed = "SELECT count(*) FROM idempotency WHERE key = 'doubt' AND tx_id IS NOT NULL"
        if done or not driver.execute(claimed).fetchone()[0]:
            return commit()
        done.append(True)
        commit()
        own_cluster.restart()
        return commit()

    commit_by(monkeypatch, restart_once)
    error_of(await world.pay(wallet, payee, "1", headers=headers), 503, "storage_unavailable")
    async with asyncio.timeout(30):
        while (answer := await world.pay(wallet, payee, "1", headers=headers)).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert answer.json()["status"] == "confirmed", answer.text
    assert await world.balance(payee) == 1_000_000


async def test_restart_of_the_service_finds_what_was(world: ServiceWorld) -> None:
    await _recovered(world)
    before = await world.ok("GET", "/v1/transactions?limit=100")
    await world.restart()
    assert isinstance(world.service.db, PostgresDatabase)
    assert await world.ok("GET", "/v1/transactions?limit=100") == before


async def test_commands_name_the_fault_in_one_line(cluster: Cluster, world: ServiceWorld) -> None:
    def run(url: str, *command: str) -> tuple[int, str]:
        found = CliRunner().invoke(main, command, env={"AGENT_VAULT_DATABASE_URL": url})
        return found.exit_code, found.output

    folder = str(world.settings.data_dir)
    empty = cluster.url(cluster.database())
    code, line = await asyncio.to_thread(run, empty, "orgs", "list", "--data-dir", folder)
    assert code == 1
    assert "has no schema: run `agent-vault db upgrade`" in line
    assert line.count("\n") == 1
    assert await asyncio.to_thread(run, empty, "db", "upgrade") == (0, _said(empty, f"is now {REVISIONS[-1]}"))
    assert await asyncio.to_thread(run, empty, "db", "upgrade") == (0, _said(empty, f"is already {REVISIONS[-1]}"))
    code, line = await asyncio.to_thread(run, empty, "backup", "somewhere.zip", "--data-dir", folder)
    assert code == 1
    assert "use pg_dump" in line
    code, line = await asyncio.to_thread(run, "", "db", "upgrade")
    assert code == 1
    assert "AGENT_VAULT_DATABASE_URL" in line


def _said(url: str, what: str) -> str:
    name = url.split("@/")[1].split("?", maxsplit=1)[0]
    return f"database {name} on {url.split('host=')[1]}: the schema {what}\n"
