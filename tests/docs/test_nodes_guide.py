"""Follows the guide to several nodes exactly as shown, from an empty database to three nodes behind HAProxy."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

from tests.nodes.nodes import haproxy
from tests.support import postgres
from tests.support.postgres import Cluster
from tests.support.processes import free_ports
from tests.support.reader import Reader, blocks_of
from tests.support.warm import programs

_ROOT = Path(__file__).resolve().parents[2]
_GUIDE = _ROOT / "app/docs/guides/nodes.md"


async def test_newcomer_runs_three_nodes_behind_a_proxy(cluster: Cluster, tmp_path: Path) -> None:
    program = haproxy()
    (tmp_path / "deploy").symlink_to(_ROOT / "deploy")
    (first, chain), *others = (free_ports() for _ in range(4))
    ports = {"8400": first, "8899": chain} | {f"840{at}": port for at, (port, _) in enumerate(others, 1)}
    binaries = postgres.programs()
    assert binaries is not None
    reader = Reader(
        tmp_path,
        [block.replace("/usr/sbin/haproxy", program) for block in blocks_of(_GUIDE)],
        {name: str(port) for name, port in ports.items()},
        PATH=f"{programs()}:{binaries}:/usr/local/bin:/usr/bin:/bin",
        # The test's own database server, and an account there.
        PGHOST=str(cluster.folder),
        PGUSER="cluster",
    )
    async with AsyncExitStack() as stack:
        await reader.types("cat > nodes.env")
        await stack.enter_async_context(reader.keeps_running("localnet --data-dir", "8899"))
        assert "Admin API key" in await reader.types("orgs create")
        await stack.enter_async_context(reader.keeps_running("agent-vault serve", "8401", "8402", "8403"))
        await stack.enter_async_context(reader.keeps_running("haproxy", "8400"))

        paid = _answers(await reader.types("fail-with-body"))[-1]
        assert (paid["status"], paid["amount"]) == ("confirmed", "1.00")

        again, wallet = _answers(await reader.types("kill -9"))
        assert again == paid
        assert wallet["usdc_balance"] == "9.00"

        await reader.types("pg_dump")
    kept = "SELECT response FROM idempotency WHERE key = 'payment-1'"
    assert cluster.execute(kept, "restored") == cluster.execute(kept, "vault") != []


def _answers(printed: str) -> list[dict[str, str]]:
    found, at, decoder = [], 0, json.JSONDecoder()
    while at < len(printed.rstrip()):
        one, at = decoder.raw_decode(printed, at)
        found.append(one)
        at += len(printed[at:]) - len(printed[at:].lstrip())
    return found
