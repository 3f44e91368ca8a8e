"""`agent-vault db copy`: a service goes on, on PostgreSQL, where it was on SQLite."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from pydantic import SecretStr
from solders.hash import Hash
from sqlalchemy import func, select

from app.commands.main import main
from app.localnet import Localnet
from app.store import copying
from app.store.audit import log_head, verify
from app.store.feed import table as feed
from tests.support.postgres import Cluster
from tests.support.service_world import GENESIS_HASHES, Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(name="url")
def _url(cluster: Cluster, template: str) -> str:
    return cluster.url(cluster.database(template))


@pytest_asyncio.fixture(loop_scope="module", name="old")
async def _old(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """A service on SQLite that has paid; a test may stop it."""
    async with ServiceWorld(tmp_path / "data") as opened:
        yield opened


async def _copy(folder: Path, url: str, *options: str) -> Result:
    arguments = ["db", "copy", "--data-dir", str(folder), *options]
    env = {"AGENT_VAULT_DATABASE_URL": url}
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)


async def _refusal(folder: Path, url: str, *options: str) -> str:
    refused = await _copy(folder, url, *options)
    assert refused.exit_code == 1, refused.output
    assert refused.exception is None or isinstance(refused.exception, SystemExit), refused.exception
    [line] = refused.output.splitlines()
    assert line.startswith("Error: ")
    return line


def _counts(cluster: Cluster, url: str) -> dict[str, int]:
    """The rows of each table besides those of the schema itself."""
    name = url.partition("@/")[2].partition("?")[0]
    tables = cluster.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name)
    left_out = {"alembic_version", "schema_versions"}
    return {
        one: cluster.execute(f'SELECT count(*) FROM "{one}"', name)[0][0] for (one,) in tables if one not in left_out
    }


async def _pay_once(world: ServiceWorld, wallet: Json, payee: str, key: str) -> Json:
    answer = await world.pay(wallet, payee, "1.25", headers={"Idempotency-Key": key}, body={"memo": 'é "x" \\u0000'})
    assert answer.json()["status"] == "confirmed", answer.text
    found: Json = answer.json()
    return found


async def _export(world: ServiceWorld) -> Json:
    made = await world.ok("POST", "/v1/transactions/export", {"format": "json"})
    async with asyncio.timeout(30):
        while True:
            found = await world.ok("GET", f"/v1/transactions/exports/{made['export_id']}")
            if found["status"] == "ready":
                return found
            await asyncio.sleep(0.02)


async def test_service_goes_on_with_all_that_it_knew(old: ServiceWorld, url: str) -> None:
    wallet, payee = await old.wallet(label='"Ünïcode"'), await old.payee()
    paid = await _pay_once(old, wallet, payee, "lunch")
    policy = await old.policy(maxPerTx="5.00")
    error_of(await old.pay(await old.wallet(policy["policy_id"], funds=None), payee, "6"), 402, "policy_violation")
    half = await old.ok("GET", "/v1/events?limit=2")
    export = await _export(old)
    shown = {path: await old.ok("GET", path) for path in ("/v1/wallets", "/v1/transactions", "/v1/audit-log")}
    rest = await old.ok("GET", f"/v1/events?limit=100&cursor={half['next_cursor']}")
    head = old.service.db.read_now(lambda conn: log_head(conn, old.org))
    await old.stop()

    copied = await _copy(old.settings.data_dir, url)
    assert copied.exit_code == 0, copied.output
    assert "The wallets hold 98.75 USDC" in copied.output
    assert "the rows of confirmed transactions add up to 101.25 USDC" in copied.output

    await old.start(database_url=SecretStr(url))
    assert await _pay_once(old, wallet, payee, "lunch") == paid
    assert await old.balance(payee) == 1_250_000
    for path, before in shown.items():
        assert await old.ok("GET", path) == before, path
    again = await old.ok("GET", f"/v1/events?limit=100&cursor={half['next_cursor']}")
    assert again["data"] == rest["data"]
    assert head is not None
    assert old.service.db.read_now(lambda conn: verify(conn, old.org, head.hash)) > 0
    await _pay_once(old, wallet, payee, "dinner")
    assert await old.balance(payee) == 2_500_000

    async with old.node() as second:
        found = await second.ok("GET", f"/v1/transactions/exports/{export['export_id']}")
        assert (await second.client.get(found["download_url"])).status_code == 200


async def test_folder_serves_no_more_once_its_state_was_moved(old: ServiceWorld, url: str) -> None:
    await old.stop()
    folder = old.settings.data_dir
    assert (await _copy(folder, url)).exit_code == 0

    serving = await asyncio.to_thread(CliRunner().invoke, main, ["serve", "--data-dir", str(folder)])
    assert serving.exit_code == 1
    assert f"Error: the data in {folder} was moved to the database test_" in serving.output
    assert "set its address in AGENT_VAULT_DATABASE_URL" in serving.output
    assert "was moved to the database test_" in await _refusal(folder, url)


async def test_running_service_and_a_database_with_data_are_refused(
    old: ServiceWorld, url: str, cluster: Cluster, tmp_path: Path
) -> None:
    folder = old.settings.data_dir
    assert (
        await _refusal(folder, url)
        == f"Error: a service, a keeper or another command is running on {folder}; stop it first"
    )
    await old.stop()
    async with ServiceWorld(tmp_path / "other", database_url=url):
        line = await _refusal(folder, url)
    assert "belongs to another chain or program, on a local network" in line
    name = url.partition("@/")[2].partition("?")[0]
    cluster.execute("DELETE FROM setting_values", name)
    assert "already has data in its table" in await _refusal(folder, url)
    empty = cluster.url(cluster.database())
    assert "has no schema: run `agent-vault db upgrade`" in await _refusal(folder, empty)
    assert "there is no service data" in await _refusal(tmp_path / "none", url)


async def test_foreign_chain_is_refused(old: ServiceWorld, url: str, cluster: Cluster) -> None:
    await old.stop()
    folder = old.settings.data_dir
    async with Localnet.open(None, {}) as other, other.serving("127.0.0.1", 0) as (port, _):
        other.chain.timeline.genesis_hash = Hash.from_string(GENESIS_HASHES["devnet"])
        line = await _refusal(folder, url, "--rpc-url", f"http://127.0.0.1:{port}")
    assert f"the node at 127.0.0.1:{port} cannot be used: the node belongs to devnet" in line
    unreached = await _refusal(folder, url, "--rpc-url", "http://127.0.0.1:1")
    assert "no usable response from" in unreached
    with closing(sqlite3.connect(folder / "chain.db")) as events, events:
        events.execute("UPDATE chain_events SET org = 'other'")
    assert "holds the events of another chain" in await _refusal(folder, url)
    assert set(_counts(cluster, url).values()) == {0}


async def test_copy_that_fails_or_differs_leaves_nothing(
    old: ServiceWorld, url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old.stop()
    folder = old.settings.data_dir
    own = copying._converted

    def without_the_last(found: sqlite3.Cursor, types: Any) -> Any:
        rows = list(own(found, types))
        return iter(rows[:-1])

    monkeypatch.setattr(copying, "_converted", without_the_last)
    assert "differs from the data folder; nothing was kept" in await _refusal(folder, url)
    monkeypatch.undo()
    with closing(sqlite3.connect(folder / "agent-vault.db")) as file, file:
        file.execute("INSERT INTO setting_values (name, value) VALUES ('bad', CAST(x'ff' AS TEXT))")
    assert "the table setting_values cannot be read" in await _refusal(folder, url)
    assert set(_counts(cluster, url).values()) == {0}
    assert not (folder / "moved-to").exists()

    with closing(sqlite3.connect(folder / "agent-vault.db")) as file, file:
        file.execute("DELETE FROM setting_values WHERE name = 'bad'")
    assert (await _copy(folder, url)).exit_code == 0
    assert _counts(cluster, url)["wallets"] == 0 < _counts(cluster, url)["chain_events"]


async def test_deleted_events_leave_their_positions_taken(old: ServiceWorld, url: str) -> None:
    await old.stop()
    with closing(sqlite3.connect(old.settings.data_dir / "agent-vault.db")) as file, file:
        (last,) = file.execute("SELECT max(position) FROM feed").fetchone()
        file.execute("DELETE FROM feed")

    assert (await _copy(old.settings.data_dir, url)).exit_code == 0

    await old.start(database_url=SecretStr(url))
    await old.wallet()
    newest = old.service.db.read_now(lambda conn: conn.scalar(select(func.min(feed.c.position)))) or 0
    assert newest > last
