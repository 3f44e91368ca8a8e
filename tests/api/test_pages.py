"""The documentation covers every code, event, route and setting, and what it says is true."""

import ast
import json
import re
from html import unescape
from pathlib import Path

import pytest
from starlette.routing import Route

import app
from app.core.errors import CATALOGUE
from app.core.settings import Settings
from app.events.catalogue import EVENTS
from app.server.application import routes
from app.store.audit_actions import ACTIONS
from app.store.feed import SEVERITIES
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SOURCES = [file for file in Path(app.__file__).parent.rglob("*.py") if "localnet" not in file.parts]


async def _page(world: ServiceWorld, path: str) -> str:
    response = await world.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return unescape(response.text)


@pytest.mark.parametrize("code", CATALOGUE)
async def test_every_code_has_a_page_with_cause_example_and_remedy(world: ServiceWorld, code: str) -> None:
    page = await _page(world, f"/docs/errors/{code}")

    for title in ("Cause", "Example", "What to do"):
        assert re.search(rf"<h2>{title}</h2><(p|pre)>.{{10,}}?</\1>", page, re.DOTALL), title
    [example] = re.findall(r"<pre>HTTP/1.1 (\d+) [^\n]+\n\n(.*?)</pre>", page, re.DOTALL)
    assert int(example[0]) == CATALOGUE[code].status
    error = json.loads(example[1])["error"]
    assert error["code"] == code
    assert error["docs"].endswith(f"/docs/errors/{code}")
    assert {"message", "request_id"} <= set(error)


def _codes_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(code)), *_]):
            # The texts of the others are types, reasons for the audit log, or for the developer.
            carries = name.endswith("Error") and not name.startswith(("Pydantic", "SignIn", "Value"))
            return [code] if carries and re.fullmatch(r"[a-z]+(_[a-z]+)+", code) else []
    return []


async def test_every_code_that_is_raised_is_in_the_catalogue() -> None:
    raised = {code for file in _SOURCES for node in ast.walk(ast.parse(file.read_text())) for code in _codes_in(node)}

    assert "policy_not_found" in raised
    assert raised <= set(CATALOGUE)


async def test_every_event_has_its_place_on_the_page(world: ServiceWorld) -> None:
    page = await _page(world, "/docs/events")

    for name, kind in EVENTS.items():
        assert f'<h2 id="{name}">' in page
        assert kind.meaning.replace("`", "") in re.sub(r"</?code>", "", page)
        assert all(f"<code>{field}</code>" in page for field in (*kind.fields, *kind.optional))


async def test_every_event_that_is_emitted_is_in_the_catalogue() -> None:
    subjects = "|".join({name.partition(".")[0] for name in EVENTS} | {"webhook"})
    told = {
        node.value
        for file in _SOURCES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(rf"({subjects})\.(?!html)[a-z_]+", node.value)
    }

    # Actions of the audit log have names of the same form.
    assert (told - set(ACTIONS)) | {"ping"} == set(EVENTS)
    assert set(SEVERITIES) <= set(EVENTS)


async def test_every_route_has_its_place_on_the_page(world: ServiceWorld) -> None:
    page = await _page(world, "/docs/api")

    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            assert f'<span class="method">{method}</span> {route.path}</h3>' in page, route.path
            assert re.search(rf">{method}</span> {re.escape(route.path)}</h3><p>[A-Z][^<]", page), route.path


async def test_every_setting_has_its_place_on_the_page(world: ServiceWorld) -> None:
    page = await _page(world, "/docs/settings")

    for name, field in Settings.model_fields.items():
        assert f'<tr id="{name}"><td><code>AGENT_VAULT_{name.upper()}</code></td>' in page
        assert field.description, f"{name} has no description"
        assert field.description.split("`")[0].strip() in page


async def test_first_page_leads_to_the_others(world: ServiceWorld) -> None:
    page = await _page(world, "/docs")

    for link in re.findall(r'href="(/[^"#]*)"', page):
        # The dashboard sends on to its sign-in.
        assert (await world.client.get(link)).status_code == (303 if link == "/dashboard" else 200), link
    assert {'href="/docs/events"', 'href="/docs/settings"'} <= set(re.findall(r'href="[^"]+"', page))


async def test_routes_that_need_a_key_are_those_of_the_interface(world: ServiceWorld) -> None:
    for route in routes:
        assert isinstance(route, Route)
        if "{" not in route.path and "GET" in (route.methods or ()):
            answer = await world.client.get(route.path)
            assert (answer.status_code == 401) == route.path.startswith("/v1/"), route.path
