"""The weights of requests: 1 for every 10 rows of a page, and 1 at least for every 16 kB that an answer sends."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from httpx import Response

from app.database.sqlite import SqliteDatabase
from app.server.application import operations
from tests.dashboard.browsing import Crafted, sign_in
from tests.dashboard.estate import Places, furnish
from tests.dashboard.every_page import PAGES
from tests.support.plans import SMALL
from tests.support.service_world import Json, ServiceWorld
from tests.support.weights import Steps, counting, lengthen_history, weight_of

_BYTES = 16_384
"""Bytes of an answer for each unit of weight."""
_STEPS = 10_000
"""SQLite's steps for each unit of weight. They read 300 whole rows, or sum up 400 to 1,000."""
_PAGE = 100
_BUCKET = 100_000
_HISTORY = 10_000
"""Rows of each table that grows with time."""
_OF_WALLETS = {"wallets", "wallet_details", "wallet_tags", "policies", "policy_details", "allowlists", "daily_counts"}
"""Tables that grow with wallets and not with time."""


async def _answers(world: ServiceWorld, places: Places) -> AsyncIterator[tuple[str, bool, Response]]:
    """Ask for every route, and yield its name, True if it has pages, and the answer."""
    document = (await world.client.get("/openapi.json")).json()["paths"]
    for route in operations:
        if "GET" in (route.methods or ()):
            known = dict.fromkeys(route.param_convertors, "none") | dict(places)
            described: Json = document[route.path]["get"]
            pages = any(one["name"] == "limit" for one in described.get("parameters", ()))
            path = route.path.format_map(known) + (f"?limit={_PAGE}" if pages else "")
            yield route.path, pages, await world.call("GET", path, key=world.key("admin"))
    yield "/metrics", False, await world.call("GET", "/metrics", key=world.key("admin"))
    for page in PAGES:
        if page.session:
            browser = Crafted(world, sign_in(world, "admin"))
            yield page.name, False, await browser.client.get("/dashboard" + page.path(places))


@pytest.mark.proves("Limits: Requests of a key at once, by weight")
async def test_weight_of_each_route_covers_the_bytes_that_it_sends(tmp_path: Path) -> None:
    found = dict[str, tuple[int, float]]()
    async with ServiceWorld(tmp_path, rate_limit=1, rate_limit_burst=_BUCKET) as world:
        async for name, pages, answer in _answers(world, await furnish(world, ["one", "two"])):
            weight = weight_of(answer.headers, _BUCKET)
            rows = max(1, len(answer.json().get("data", ()))) if pages else 1
            found[name] = weight, len(answer.content) / rows * (_PAGE if pages else 1)
            assert not pages or weight == 1 + _PAGE // 10

    assert {name: one for name, one in found.items() if one[1] > one[0] * _BYTES} == {}
    assert len(found) > 50


@pytest.mark.proves("Limits: Requests of a key at once, by weight")
@pytest.mark.sqlite("counts the steps of SQLite")
async def test_weight_of_each_route_covers_the_rows_that_it_reads(tmp_path: Path) -> None:
    found = dict[str, tuple[int, int]]()
    async with ServiceWorld(tmp_path, rate_limit=1, rate_limit_burst=_BUCKET) as world:
        places, db = await furnish(world, ["one", "two"]), world.service.db
        assert isinstance(db, SqliteDatabase)
        db.write_now(lambda conn: lengthen_history(conn, SMALL | _OF_WALLETS, _HISTORY))
        with counting(db) as counted:
            counted.set(steps := Steps())
            async for name, _, answer in _answers(world, places):
                found[name] = weight_of(answer.headers, _BUCKET), steps.taken
                counted.set(steps := Steps())

    assert {name: one for name, one in found.items() if one[1] > one[0] * _STEPS} == {}
    assert sum(taken for _, taken in found.values()) > _HISTORY
