"""The documents as a whole: every link leads somewhere, the search finds, diagrams are drawn, code is complete."""

import json
import os
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from jsonschema import Draft202012Validator

from app.core.paths import program_file
from app.docs.interface import curl_line
from app.docs.layout import GUIDES
from app.docs.render import guide_page
from app.docs.text import diagram_file, markdown, source
from app.events.catalogue import EVENTS
from app.store.audit_actions import ACTIONS
from tests.docs.draw_diagrams import sources
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_START = "http://localhost/docs"
#: What leads out of the documents, and is followed no further.
_OUTSIDE = ("/dashboard", "/v1/")
_LINK = re.compile(r'\s(?:href|src)="([^"]*)"')
_MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
_GUIDES = Path(__file__).resolve().parents[2] / "app" / "docs" / "guides"
_ID = re.compile(r'\sid="([^"]*)"')


#: What guides name with a dot that is neither an event, an entry of the audit log nor a file.
_FIELDS = {"payment.status", "policy.allowlist", "vault.budget", "vault.tokens"}
_DOTTED = re.compile(r"`([a-z_]+\.[a-z_]+)`")
_FILES = (".db", ".json", ".mts")


async def test_guides_name_events_and_audit_entries_that_exist() -> None:
    for guide in _GUIDES.glob("*.md"):
        named = {one for one in _DOTTED.findall(guide.read_text(encoding="utf-8")) if not one.endswith(_FILES)}
        assert named <= {*EVENTS, *ACTIONS, *_FIELDS}, guide.name


async def test_every_link_of_every_page_leads_somewhere(world: ServiceWorld) -> None:
    pages: dict[str, str] = {}
    waiting, links = [_START], set()
    while waiting:
        address = waiting.pop()
        response = await world.client.get(address)
        if urlsplit(address).path.startswith(_OUTSIDE):
            assert response.status_code < 400, address
            continue
        assert response.status_code == 200, address
        html = response.headers["content-type"].startswith("text/html")
        pages[address] = response.text if html else ""
        for link in _LINK.findall(pages[address]):
            target = urljoin(address, unescape(link))
            links.add((address, target))
            page = target.partition("#")[0]
            if urlsplit(page).netloc == "localhost" and page not in pages and page not in waiting:
                waiting.append(page)

    assert len(pages) > 70
    for address, target in links:
        page, _, anchor = target.partition("#")
        if urlsplit(page).netloc != "localhost":
            assert target.startswith("https://"), (address, target)
        elif anchor:
            assert anchor in _ID.findall(pages[page]), (address, target)


@pytest.mark.parametrize("path", sorted(_GUIDES.glob("*.md")), ids=lambda path: path.stem)
async def test_links_between_guides_lead_somewhere_in_the_repository(path: Path) -> None:
    targets = [one.partition("#")[0] for one in _MARKDOWN_LINK.findall(source(f"guides/{path.name}"))]

    # What begins with a slash is generated, and in no file.
    generated = {"/docs/settings", "/docs/events", "/dashboard"}
    assert {one for one in targets if one.startswith("/")} <= generated
    files = [one for one in targets if one and not one.startswith(("https://", "/"))]
    assert [one for one in files if not os.path.isfile(path.parent / one)] == []  # noqa: ASYNC240, PTH113 - a moment
    # And the page leads to pages.
    shown = guide_page(path.stem)
    led = {urljoin(shown.path, unescape(link)).partition("#")[0] for link in _LINK.findall(shown.body)}
    pages = {"/docs/reference", shown.path, *generated, *(f"/docs/guides/{name}" for name in GUIDES)}
    assert {one for one in led if not one.startswith(("https://", "/docs/diagrams/"))} <= pages


async def test_every_page_is_in_the_list_of_every_page(world: ServiceWorld) -> None:
    start = (await world.client.get("/docs")).text
    listed = re.findall(r'<li><a href="([^"]+)"', start.partition('<nav id="menu"')[2])

    for path in listed:
        page = (await world.client.get(path)).text
        assert path in ("/docs/explorer", "/dashboard") or f'<a href="{path}" aria-current="page">' in page, path
    assert listed[:2] == ["/docs", "/docs/guides/authentication"]
    assert {"/docs/api", "/docs/errors", "/docs/guides/threat-model", "/docs/guides/limits"} <= set(listed)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("freeze", "/docs/api#update_wallet"),
        ("insufficient balance", "/docs/errors/wallet_insufficient_balance"),
        ("session token", "/docs/guides/authentication#session-tokens"),
        ("AGENT_VAULT_PUBLIC_URL", "/docs/settings"),
        ("restore backup", "/docs/guides/operations#backup-and-restore"),
        ("transaction.blocked", "/docs/events#transaction.blocked"),
        ("POST /v1/payments/simulate", "/docs/api#simulate_payment"),
    ],
)
async def test_search_finds_the_section(world: ServiceWorld, query: str, first: str) -> None:
    page = (await world.client.get("/docs/search", params={"q": query})).text

    found = re.findall(r'<li><a href="([^"]+)">[^<]*</a> <span class="muted">', page)
    assert first in found[:5]


@pytest.mark.parametrize("query", ["", "   ", "zzzzqqq", "<script>alert(1)</script>", '"><img src=x>', "%", "a" * 5000])
async def test_search_answers_whatever_is_asked_without_markup(world: ServiceWorld, query: str) -> None:
    response = await world.client.get("/docs/search", params={"q": query})

    assert response.status_code == 200
    assert "<script>alert" not in response.text
    assert "<img src=x" not in response.text
    assert len(response.text) < 40_000


async def test_every_diagram_is_drawn_and_shown_with_its_text(world: ServiceWorld) -> None:
    found = sources()

    assert found
    for text in found:
        picture = await world.client.get(f"/docs/{diagram_file(text)}")
        assert picture.status_code == 200, f"run `python -m tests.docs.draw_diagrams` for:\n{text}"
        assert picture.headers["content-type"] == "image/svg+xml"
        assert picture.headers["content-security-policy"].startswith("default-src 'none'")
        shown = markdown(f"```mermaid\n{text}```")
        assert diagram_file(text) in shown
        assert text in unescape(shown)


@pytest.mark.parametrize("name", ["nothing", "..%2fstyle", "", "%2e%2e%2freference"])
async def test_unknown_files_of_the_documents_are_not_found(world: ServiceWorld, name: str) -> None:
    for path in (f"/docs/assets/{name}", f"/docs/diagrams/{name}.svg"):
        assert (await world.client.get(path)).status_code == 404, path


async def test_tests_are_out_of_the_readers_way(world: ServiceWorld) -> None:
    page = (await world.client.get("/docs/reference")).text

    assert page.count("<details><summary>shown by</summary>") > 600
    assert "::test_" not in re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)


async def test_limits_of_the_reference_are_on_their_page_without_tests(world: ServiceWorld) -> None:
    page = (await world.client.get("/docs/guides/limits")).text

    assert "<td>Page of a list</td>" in page
    assert "::test_" not in page
    assert "&lt;!--" not in page


async def test_size_of_the_program_is_the_one_on_the_page(world: ServiceWorld) -> None:
    size = len(program_file().read_bytes())

    assert f"{size:,} bytes, about {_rent_sol(size):.2f} SOL" in (await world.client.get("/docs/guides/limits")).text


def _rent_sol(size: int) -> float:
    """Return the deposit for a program of this size, in SOL: 3,480 lamports a year and byte, for two years."""
    return (128 + 45 + size) * 2 * 3_480 / 1e9


async def test_every_operation_has_a_curl_line_with_a_valid_body(world: ServiceWorld) -> None:
    document = (await world.client.get("/openapi.json")).json()
    page = unescape((await world.client.get("/docs/api")).text)

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            line = curl_line(document, path, method)
            assert f"<pre>{line}</pre>" in page, operation["operationId"]
            words = shlex.split(line)
            sent = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
            assert sent.lower() == method, line
            [address] = [word for word in words if word.startswith("$URL")]
            assert re.fullmatch(re.sub(r"\\{\w+\\}", "[^/{}]+", re.escape(path)), address.removeprefix("$URL")), line
            _body_is_valid(document, operation, words)


def _body_is_valid(document: dict[str, Any], operation: dict[str, Any], words: list[str]) -> None:
    if "-d" not in words:
        assert not operation.get("requestBody", {}).get("required"), operation["operationId"]
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = words[words.index("-d") + 1]
    Draft202012Validator({**schema, "components": document["components"]}).validate(json.loads(body))
