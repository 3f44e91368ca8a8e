"""Every statement that the service sends in a day's work is the text of a statement that SQLAlchemy compiled."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.database.postgres import transactions
from app.database.postgres.engine import PLACE
from tests.support.escrows import A2A, OUTPUT, agent
from tests.support.old_databases import TEXT
from tests.support.postgres import Cluster
from tests.support.sent import compiled_texts, logged, numbered, sent_to_sqlite
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.sqlite("runs on both databases by itself")

_TRANSACTIONS = (
    r"BEGIN( IMMEDIATE| ISOLATION LEVEL REPEATABLE READ READ ONLY)?",
    r"COMMIT",
    r"ROLLBACK",
    r"(SAVEPOINT|RELEASE|ROLLBACK TO|ROLLBACK TO SAVEPOINT) (job|piece)",
    # Begins a transaction with the writers' lock, and reads the leases.
    r"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT set_config\(.* pg_advisory_xact_lock\(.*",
    r"(NOTIFY \w+, '[^;]*'; )+COMMIT",
    r"LISTEN \w+",
    r"PRAGMA \w+ ?(= ?\w+|\(\w+\))?;?",
    r"DEALLOCATE \w+",
)
_OF_SQLALCHEMY = (
    # Asked once for each connection, table or file.
    r"SELECT name FROM sqlite_(temp_)?master WHERE type='table' .*",
    r"select pg_catalog.version\(\)",
    r"select current_schema\(\)",
    r"show (standard_conforming_strings|transaction isolation level)",
    r"PRAGMA (main|temp)\.table_(info|xinfo)\(\"\w+\"\)",
)
_LISTED = [re.compile(one, re.DOTALL) for one in (*_TRANSACTIONS, *_OF_SQLALCHEMY, re.escape(PLACE))]
"""The statements that no object stands for."""
_FAST = ("keeper_interval", "recovery_interval", "housekeeping_interval", "webhook_interval")
_PARTS = (
    "chain_events",
    "attempts",
    "feed",
    "policies",
    "escrows",
    "webhook_deliveries",
    "exports",
    "DELETE FROM feed",
)


async def _day(folder: Path, **settings: Any) -> None:
    """Use the service: payments, a change of policy, an escrow, an export, a webhook, and the work in between."""
    settings |= {**dict.fromkeys(_FAST, 0.2), "keeper": True, "alerts": True, "reconciliation": True}
    async with ServiceWorld(folder, **settings) as world:
        await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]})
        paying, receiving = await agent(world), await agent(world)
        paid = await world.pay(paying.wallet, await world.payee(), "1", body={"memo": TEXT})
        policy = await world.policy(name="Day", max_per_tx="70")
        await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "60"})
        locked = await paying.lock(receiving)
        proof = {"proofType": "output_hash", "proof": f"sha256:{OUTPUT}"}
        await receiving.call("POST", f"{A2A}/{locked['escrow_id']}/complete", proof)
        await world.ok("POST", "/v1/transactions/export", {"format": "json"})
        await world.catch_up()
        await world.restart()
        shown = await world.ok("GET", f"/v1/transactions/{paid.json()['tx_id']}")
        assert shown["memo"] == TEXT


def _unknown(sent: Collection[str], compiled: Collection[str]) -> list[str]:
    known = {*compiled, *map(numbered, compiled)}
    return [one for one in sent if one not in known and not any(listed.fullmatch(one) for listed in _LISTED)]


async def test_all_text_sent_to_sqlite_is_compiled_or_listed(tmp_path: Path) -> None:
    with compiled_texts() as compiled, sent_to_sqlite("agent-vault.db", "chain.db") as sent:
        await _day(tmp_path, database_url=None)

    assert all(any(part in one for one in sent) for part in _PARTS)
    assert not (left := _unknown(sent, compiled)), "\n".join(left)


async def test_all_text_sent_to_postgresql_is_compiled_or_listed(
    tmp_path: Path, cluster: Cluster, template: str
) -> None:
    name, log = cluster.database(template), cluster.folder / "log"
    cluster.execute(f"ALTER DATABASE {name} SET log_statement = 'all'")
    before = log.stat().st_size
    transactions._beginning.cache_clear()
    with compiled_texts() as compiled:
        await _day(tmp_path, database_url=SecretStr(cluster.url(name)))
    with log.open("rb") as lines:
        lines.seek(before)
        sent = logged(lines.read().decode())

    assert all(any(part in one for one in sent) for part in _PARTS)
    assert not (left := _unknown(sent, compiled)), "\n".join(left)
