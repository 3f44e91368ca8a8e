"""A disk that is full: requests say so, lose nothing, and go on once there is room."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.submission.recovery import Recovery
from tests.support.chain import USDC
from tests.support.service_world import ServiceWorld, error_of
from tests.support.sqlite import sqlite_writer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextmanager
def _full(connection: Any) -> Iterator[None]:
    """Let a database not grow any more, which SQLite reports as a full disk."""
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    yield
    connection.execute("PRAGMA max_page_count=1000000")


@pytest.mark.proves("error storage_unavailable")
async def test_full_disk_is_503_and_the_request_goes_on_under_its_key(
    own_world: ServiceWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.3)
    keyed: Any = {"headers": {"Idempotency-Key": "full"}, "body": {"memo": "x" * 200}}
    writer: Any = sqlite_writer(world.service.db)

    with _full(writer):
        # What is free inside the file may be used up first
        answers = [await world.pay(wallet, to, "0.01", body={"memo": "x" * 200}) for _ in range(20)]
        refused = await world.pay(wallet, to, "1", **keyed)

    error_of(refused, 503, "storage_unavailable")
    assert refused.headers["retry-after"] == "1"
    assert {one.status_code for one in answers} <= {200, 503}
    paid = (await world.pay(wallet, to, "1", **keyed)).json()
    await world.service.part(Recovery).recover()
    assert (await world.ok("GET", f"/v1/payments/{paid['tx_id']}"))["status"] == "confirmed"
    landed = await world.balance(to) - USDC
    assert landed >= sum(one.status_code == 200 for one in answers) * 10_000
    assert "Traceback" not in capsys.readouterr().out
