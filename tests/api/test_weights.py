"""The weights of requests: 1 for every 10 rows of a page, and 1 at least for every 16 kB that an answer sends."""

import re
from pathlib import Path

from app.server.application import operations
from tests.dashboard.browsing import Crafted, sign_in
from tests.dashboard.estate import furnish
from tests.dashboard.every_page import PAGES
from tests.support.service_world import Json, ServiceWorld

_BYTES = 16_384
"""Bytes of an answer for each unit of weight."""
_PAGE = 100
_BUCKET = 100_000


def _weight(headers: object) -> int:
    [rest] = re.findall(r"r=(\d+)", headers["ratelimit"])  # type: ignore[index]
    return _BUCKET - int(rest)


async def test_weight_of_each_route_covers_the_bytes_that_it_sends(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path, rate_limit=1, rate_limit_burst=_BUCKET) as world:
        places = await furnish(world, ["one", "two"])
        document = (await world.client.get("/openapi.json")).json()["paths"]
        found = dict[str, tuple[int, float]]()
        for route in operations:
            if "GET" in (route.methods or ()):
                known = dict.fromkeys(route.param_convertors, "none") | dict(places)
                described: Json = document[route.path]["get"]
                pages = any(one["name"] == "limit" for one in described.get("parameters", ()))
                path = route.path.format_map(known) + (f"?limit={_PAGE}" if pages else "")
                answer = await world.call("GET", path, key=world.key("admin"))
                rows = max(1, len(answer.json().get("data", ()))) if pages else 1
                sent = len(answer.content) / rows * (_PAGE if pages else 1)
                found[route.path] = _weight(answer.headers), sent
                assert not pages or _weight(answer.headers) == 1 + _PAGE // 10
        answer = await world.call("GET", "/metrics", key=world.key("admin"))
        found["/metrics"] = _weight(answer.headers), len(answer.content)
        for page in PAGES:
            if page.session:
                browser = Crafted(world, sign_in(world, "admin"))
                answer = await browser.client.get("/dashboard" + page.path(places))
                found[page.name] = _weight(answer.headers), len(answer.content)

    assert {name: one for name, one in found.items() if one[1] > one[0] * _BYTES} == {}
    assert len(found) > 50
