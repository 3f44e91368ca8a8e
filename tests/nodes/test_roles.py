"""What a node does by its roles, and what it says when it cannot."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from app.access.keyring import KeyRing
from app.access.rate_limit import Peers
from app.api.metrics import Metrics
from app.commands.main import main
from app.database import Database
from app.database.leases import NODE, alive
from app.database.leases import table as leases
from app.server.gauges import Gauges
from app.server.health import Health
from app.store.keys import api_keys, revoke_api_key
from app.submission.context import Service
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _holder(service: Service, lease: str) -> str | None:
    holder = select(leases.c.holder).where(leases.c.name == lease, leases.c.expires_at > 0)
    found: str | None = await service.db.read(lambda conn: conn.scalar(holder))
    return found


@pytest.mark.proves("GET /readyz")
async def test_node_without_the_indexer_pays_and_does_nothing_single(first: ServiceWorld) -> None:
    async with first.node(roles="api") as api:
        wallet, payee = await api.wallet(), await api.payee()
        async with asyncio.timeout(first.settings.confirm_timeout):
            paid = await api.pay(wallet, payee, "1", headers={"Idempotency-Key": "once"})
        assert paid.json()["status"] == "confirmed"
        assert (await first.pay(wallet, payee, "1", headers={"Idempotency-Key": "once"})).json() == paid.json()
        for lease in ("indexer", "worker"):
            assert await _holder(api.service, lease) == first.service.db.node
        await first.stop()
        # Nobody follows the chain now, and yet what is paid is seen.
        paid = await api.pay(wallet, payee, "1")
        # The node can pay, so it stays ready even if no node reads what is paid
        health = Health(api.service, remember=0.0)
        api.clock.ahead += 3600
        report = await health.report()
        assert (report.failing, report.missing_roles) == ((), ["indexer", "worker"])
        await Gauges(api.service).tick()
        shown = api.service.part(Metrics).text(None)
        assert b"agent_vault_missing_indexer 1.0" in shown
        assert b"agent_vault_missing_worker 1.0" in shown
        ready = (await api.client.get("/readyz")).json()
        assert (ready["status"], ready["missing_roles"]) == ("ready", ["indexer", "worker"])
        assert paid.json()["status"] == "confirmed"
        assert await _holder(api.service, "indexer") is None
        names = [NODE + one.service.db.node for one in (api, first)]
        assert await api.service.db.read(alive) & {*names} == {names[0]}
        await first.start()
        assert await _holder(first.service, "indexer") == first.service.db.node


async def test_node_without_the_api_answers_probes_only(first: ServiceWorld) -> None:
    async with first.node(roles="indexer, worker") as works:
        assert (await works.call("GET", "/readyz")).status_code == 200
        error_of(await works.call("GET", "/v1/wallets"), 404, "not_found")
        assert (await works.client.get("/dashboard")).status_code == 404


async def test_each_node_grants_its_share_of_the_rate_limit(first: ServiceWorld) -> None:
    async with first.node(rate_limit=2, rate_limit_burst=20) as limited:
        peers = limited.service.part(Peers)
        async with asyncio.timeout(30):
            while peers.count != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        answers = [await limited.call("GET", "/v1/events?limit=1") for _ in range(11)]
        assert [one.status_code for one in answers] == [200] * 10 + [429]
        assert answers[0].headers["ratelimit-policy"] == '"default";q=10;w=10'
        async with first.node(roles="indexer"):
            await first.stop()
            async with asyncio.timeout(30):
                while peers.count != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await first.start()


async def test_key_that_was_revoked_on_one_node_ends_on_all_within_a_second(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    made = await first.ok("POST", "/v1/keys", {"role": "viewer", "name": "to end"})
    await second.ok("GET", "/v1/wallets", key=made["key"])
    await first.ok("DELETE", f"/v1/keys/{made['key_id']}")
    revoked = time.monotonic()
    while True:
        asked = time.monotonic()
        answer = await second.call("GET", "/v1/wallets", key=made["key"])
        if answer.status_code == 401:
            break
        assert asked < revoked + 1.0


async def test_cached_key_counts_from_before_it_was_read(sqlite_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    ring = KeyRing(sqlite_db, b"secret", cache_seconds=1.0, timer=lambda: now[0])
    key = ring.create(org="org", role="viewer", wallet_id=None, name="slow", live=False)
    read = sqlite_db.read

    async def slow(work: Any, **options: Any) -> Any:
        found = await read(work, **options)
        now[0] += 5
        return found

    monkeypatch.setattr(sqlite_db, "read", slow)
    assert await ring.recognise(key, None) is not None
    record = sqlite_db.read_now(lambda conn: api_keys(conn, "org"))[0]
    sqlite_db.write_now(lambda conn: revoke_api_key(conn, "org", record.key_id, 1))
    assert await ring.recognise(key, None) is None


async def _refused(world: ServiceWorld, folder: Path, *options: str, **environment: str) -> str:
    """What `serve` says on the world's database and another folder; an empty variable is not set."""
    assert world.settings.database_url is not None
    url = world.settings.database_url.get_secret_value()
    given: dict[str, str | None] = {
        "AGENT_VAULT_DATABASE_URL": url,
        **{f"AGENT_VAULT_{name}": value for name, value in environment.items()},
    }
    given = {name: value or None for name, value in given.items()}
    arguments = ["serve", "--data-dir", str(folder), "--port", "1", *options]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=given)
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1
    return result.output


async def test_node_that_cannot_serve_says_why(first: ServiceWorld, tmp_path: Path) -> None:
    name = first.service.db.name
    chain = await _refused(first, tmp_path / "other")
    assert f"the {name} belongs to" in chain
    assert "all nodes must use the same chain, so name its node with --rpc-url" in chain

    rpc = ("--rpc-url", "http://127.0.0.1:9")
    missing = await _refused(first, tmp_path / "other", *rpc)
    assert f"{tmp_path}/other/keys/service-secret is missing, the secret of the {name}" in missing
    assert "AGENT_VAULT_KEYS_DIR" in missing
    assert not (tmp_path / "other" / "keys").exists()

    keys = tmp_path / "keys"
    keys.mkdir()
    assert f"{keys}/service-secret is missing" in await _refused(first, tmp_path / "other", *rpc, KEYS_DIR=str(keys))
    shutil.copytree(first.settings.paths().keys, keys, dirs_exist_ok=True)
    (keys / "operator.json").unlink()
    assert f"{keys}/operator.json" in await _refused(first, tmp_path / "other", *rpc, KEYS_DIR=str(keys))

    refused = await _refused(first, tmp_path / "other", "--roles", "api,")
    assert "nothing is not a role; the roles are api, indexer, worker" in refused
    alone = await _refused(first, tmp_path / "alone", "--roles", "api", DATABASE_URL="")
    assert "--roles needs a database on PostgreSQL" in alone


async def test_read_models_are_not_rebuilt_under_a_living_node(first: ServiceWorld) -> None:
    assert first.settings.database_url is not None
    given = {"AGENT_VAULT_DATABASE_URL": first.settings.database_url.get_secret_value()}
    folder = str(first.settings.data_dir)
    result = await asyncio.to_thread(CliRunner().invoke, main, ["rebuild", "--data-dir", folder], env=given)
    assert result.exit_code == 1
    assert (
        f"nodes serve from the {first.service.db.name}; stop them first" in result.output
        or "is running on" in result.output
    )
