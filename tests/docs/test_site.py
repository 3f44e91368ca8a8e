"""The documents as a whole: every link leads to a page, the search finds pages, and every diagram is drawn."""

import os
import re
from fnmatch import fnmatch
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from app.core.errors import CATALOGUE
from app.core.event_catalogue import EVENTS
from app.core.paths import program_file
from app.docs.layout import GUIDES, DocPage
from app.docs.render import guide_page
from app.docs.search import SearchIndex, search_fault
from app.docs.site import DocumentSite
from app.docs.text import diagram_file, markdown, source
from app.store.audit_actions import ACTIONS
from tests.docs.date_documents import dated
from tests.docs.draw_diagrams import sources
from tests.docs.questions import QUESTIONS
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_START = "http://localhost/docs"
#: Beginnings of paths outside the documents. The links there are not followed.
_OUTSIDE = ("/dashboard", "/v1/")
_RESULT = re.compile(r'<li><a href="([^"]+)">[^<]*</a>(?: <span class="muted">[^<]*</span>)?<br>')
_LINK = re.compile(r'\s(?:href|src)="([^"]*)"')
_MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
_GUIDES = Path(__file__).resolve().parents[2] / "app" / "docs" / "guides"
_ID = re.compile(r'\sid="([^"]*)"')


#: Dotted names in the guides that are neither events, nor actions of the audit log, nor files.
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

    # A target that begins with a slash is a generated page without a file.
    generated = {"/docs/settings", "/docs/events", "/docs/errors", "/docs/reference", "/dashboard"}
    assert {one for one in targets if one.startswith("/")} <= generated
    files = [one for one in targets if one and not one.startswith(("https://", "/"))]
    assert [one for one in files if not os.path.isfile(path.parent / one)] == []  # noqa: ASYNC240, PTH113 - a moment
    # And the links of the shown page lead to pages.
    shown = guide_page(path.stem)
    led = {urljoin(shown.path, unescape(link)).partition("#")[0] for link in _LINK.findall(shown.body)}
    pages = {"/docs/reference", shown.path, *generated, *(f"/docs/guides/{name}" for name in GUIDES)}
    assert {one for one in led if not one.startswith(("https://", "/docs/diagrams/"))} <= pages


async def test_every_page_is_in_the_list_of_every_page(world: ServiceWorld) -> None:
    start = (await world.client.get("/docs")).text
    listed = re.findall(r'<li><a href="([^"]+)"', start.partition('<nav id="menu"')[2])

    for path in listed:
        page = (await world.client.get(path)).text
        assert path == "/dashboard" or f'<a href="{path}" aria-current="page">' in page, path
    assert listed[:2] == ["/docs", "/docs/guides/authentication"]
    assert {"/docs/api", "/docs/errors", "/docs/guides/threat-model", "/docs/guides/limits"} <= set(listed)


@pytest.mark.proves("GET /docs/search")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("insufficient balance", "/docs/errors/wallet_insufficient_balance"),
        ("session token", "/docs/guides/authentication#session-tokens"),
        ("AGENT_VAULT_PUBLIC_URL", "/docs/settings#public_url"),
        ("restore backup", "/docs/guides/operations#what-a-restored-copy-has-forgotten"),
        ("transaction.blocked", "/docs/events#transaction.blocked"),
        ("POST /v1/payments/simulate", "/docs/api/simulate_payment"),
    ],
)
async def test_search_finds_the_section(world: ServiceWorld, query: str, first: str) -> None:
    page = (await world.client.get("/docs/search", params={"q": query})).text

    assert first in _RESULT.findall(page)[:5]


async def test_search_answers_the_questions_of_newcomers(world: ServiceWorld) -> None:
    ranks = []
    for queries, pages in QUESTIONS.items():
        for query in queries:
            found = _RESULT.findall((await world.client.get("/docs/search", params={"q": query})).text)
            right = [any(fnmatch(one.partition("#")[0], page) for page in pages) for one in found]
            ranks.append(right.index(True) if any(right) else len(right) + 3)

    assert sum(rank == 0 for rank in ranks) >= 0.8 * len(ranks)
    assert sum(rank < 3 for rank in ranks) >= 0.95 * len(ranks)


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("verifying the signatures of webhooks", "/docs/guides/webhooks"),
        ("escro", "/docs/guides/escrow"),
        ("docker", "/docs/guides/nodes"),
        ("npm zzzzqqq", "/docs/guides/clients"),
    ],
    ids=["stems", "prefix", "synonym", "any word"],
)
async def test_search_matches_forms_beginnings_and_synonyms(world: ServiceWorld, query: str, page: str) -> None:
    found = _RESULT.findall((await world.client.get("/docs/search", params={"q": query})).text)

    assert page in [address.partition("#")[0] for address in found[:3]]


async def test_excerpt_has_whole_words_and_marks_the_match(world: ServiceWorld) -> None:
    page = (await world.client.get("/docs/search", params={"q": "policies expire"})).text

    excerpts = re.findall(r"<br>(.*?)</li>", page)
    assert any("<mark>polic" in one for one in excerpts)
    pages = [(await world.client.get(path)).text for path in set(_RESULT.findall(page))]
    assert _words(" ".join(excerpts)) <= _words(" ".join(pages))


def _words(html: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z0-9]+", unescape(re.sub("<[^>]+>", " ", html))))


@pytest.mark.proves("GET /docs/search")
@pytest.mark.parametrize(
    "query",
    [
        *("", "   ", "zzzzqqq", "<script>alert(1)</script>", '"><img src=x>', "%", "a" * 10_000),
        *('"', "a AND OR NOT (", "title: NEAR(a b, 2)", "-freeze ^x *", "\x00\x02freeze", "freeze " * 1_000),
    ],
)
async def test_search_answers_whatever_is_asked_without_markup(world: ServiceWorld, query: str) -> None:
    response = await world.client.get("/docs/search", params={"q": query})

    assert response.status_code == 200
    assert "<script>alert" not in response.text
    assert "<img src=x" not in response.text
    assert len(response.text) < 40_000


async def test_words_beyond_the_twelfth_are_not_searched_for() -> None:
    index = SearchIndex([DocPage("/docs/a", "A", "# A\n\nonly")])

    assert [one.address for one in index.results("x " * 11 + "only")] == ["/docs/a"]
    assert index.results("x " * 12 + "only") == []


@pytest.mark.parametrize(
    ("path", "likely"),
    [("/docs/guide/escrows", "/docs/guides/escrow"), ("/docs/wallet_frozen", "/docs/errors/wallet_frozen")],
)
async def test_missing_page_suggests_the_likely_one(world: ServiceWorld, path: str, likely: str) -> None:
    page = await world.client.get(path, headers={"Accept": "text/html"})
    answer = await world.client.get(path)

    assert (page.status_code, answer.status_code) == (404, 404)
    assert f'<a href="{likely}">' in page.text
    assert likely in answer.json()["error"]["message"]


async def test_service_without_fts5_says_so(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.docs.search._TABLE", "CREATE VIRTUAL TABLE sections USING absent(a)")
    document = (await world.client.get("/openapi.json")).json()

    site = DocumentSite(document, [], "http://localhost")

    assert search_fault() == "no such module: absent"
    assert "The search is off" in site.results("freeze")
    assert site.likely("/docs/guide/escrows") == "/docs/guides/escrow"


@pytest.mark.proves("GET /docs/diagrams/{name}.svg")
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


async def test_names_of_tests_are_on_no_page(world: ServiceWorld) -> None:
    for name in ("reference", "api", "errors", "events", "guides/limits"):
        assert "::test_" not in (await world.client.get(f"/docs/{name}")).text


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


async def test_every_page_is_small_and_has_its_markdown(world: ServiceWorld) -> None:
    listed = (await world.client.get("/llms.txt")).text
    addresses = re.findall(r"\]\(([^)]+)\.md\)", listed)

    assert len(addresses) > 200
    for path in (urlsplit(one).path for one in addresses):
        page, text = await world.client.get(path), await world.client.get(f"{path}.md")
        assert (page.status_code, text.status_code) == (200, 200), path
        assert len(page.content) <= 60_000, path
        assert text.headers["content-type"].startswith("text/markdown")
        assert re.search(r"^# ", text.text, re.MULTILINE), path


@pytest.mark.proves("GET /llms.txt", "GET /server.json")
async def test_models_and_registries_find_the_pages_and_the_tools(world: ServiceWorld) -> None:
    base = world.settings.base_url()
    described = (await world.client.get("/server.json")).json()

    assert f"({base}/docs/guides/escrow.md)" in (await world.client.get("/llms.txt")).text
    assert described["remotes"][0]["url"] == f"{base}/mcp"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", described["name"])
    assert len(described["description"]) <= 100
    assert {one["name"] for one in described["remotes"][0]["headers"]} == {"Authorization", "Session-Token"}


@pytest.mark.proves("GET /docs/explorer")
async def test_former_addresses_lead_to_the_pages_of_operations(world: ServiceWorld) -> None:
    assert (await world.client.get("/docs/explorer")).headers["location"] == "/docs/api"
    page = (await world.client.get("/docs/api")).text

    document = (await world.client.get("/openapi.json")).json()
    for methods in document["paths"].values():
        for operation in methods.values():
            name = operation["operationId"]
            assert f'<h3 id="{name}"><a href="/docs/api/{name}">' in page
    for anchor in ("wallets", "service", "objects", "object-RuleVerdict"):
        assert f' id="{anchor}">' in page


async def test_page_of_an_operation_has_its_constraints_roles_errors_and_answer(world: ServiceWorld) -> None:
    page = unescape((await world.client.get("/docs/api/create_payment.md")).text)

    for text in (
        "| `memo` | string, at most 512 characters or null |",
        "`to` **required**",
        "Roles: `admin`, `agent`, `operator`.",
        "| [`storage_unavailable`](/docs/errors/storage_unavailable) | 503 | yes |",
        "| [`policy_violation`](/docs/errors/policy_violation) | 402 | no |",
        '"tx_id": "tx_',
    ):
        assert text in page


async def test_dates_of_the_documents_are_those_of_their_last_change(world: ServiceWorld) -> None:
    for file in dated():
        page = DocPage("", "", "", file=file)
        assert page.edited is not None, "run `python -m tests.docs.date_documents`"
    assert '<time datetime="20' in (await world.client.get("/docs/guides/escrow")).text


async def test_guide_to_retries_names_the_errors_that_the_reference_marks() -> None:
    table = source("guides/retries.md").partition("## Errors to repeat")[2].partition("A closed")[0]
    named = set(re.findall(r"`([a-z_]+)`", table)) - {"request_id"}

    assert named == {kind.code for kind in CATALOGUE.values() if kind.retryable}
