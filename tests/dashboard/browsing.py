"""People and their browsers: real ones in Chromium, and crafted requests without."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import httpx
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser, Dialog, Page

from app.access.keyring import Principal
from app.access.recorder import Recorder
from app.core.actors import Actor, Role
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.dashboard.live import FeedHub, OpenPage, Queue
from app.database.record_tables import insert_record
from app.people.sessions import digest, open_session, person_actor
from app.store.audit import LogEntry, LogFilter, log_entries
from app.store.people import Person
from tests.support import plans
from tests.support.http import PATIENCE
from tests.support.service_world import ServiceWorld

_COOKIE = "agent-vault-session"
#: Reports what the Content-Security-Policy has stopped, and adds up by how much a page's parts move by themselves.
_WATCH = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`stopped by ${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.shifted += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""
#: Runs only those of axe's rules whose findings count: a rule's impact is that of all its findings.
_FINDINGS = """async (alike) => {
  const mild = axe._audit.rules.filter((rule) => !["serious", "critical"].includes(rule.impact));
  const rules = Object.fromEntries(mild.map((rule) => [rule.id, { enabled: false }]));
  const { violations } = await axe.run({ exclude: alike }, { resultTypes: ["violations"], rules });
  return violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}`));
}"""
_CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


#: How each page is looked at: on a desk in daylight, and on a phone in the dark.
LOOKS: tuple[dict[str, Any], ...] = ({}, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"})


@dataclass
class Served:
    """A served dashboard; `base` is the address of its first page."""

    world: ServiceWorld
    browser: Browser
    base: str
    violations: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def visit(
        self,
        role: Role | None = None,
        *,
        name: str = "Ada",
        browsers: Sequence[str] = ("test",),
        token: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Page]:
        """A page of a new browser with a passkey device; with a role, a person with it is signed in, as `sign_in`."""
        context = await self.browser.new_context(**options)
        try:
            if role is not None:
                token = sign_in(self.world, role, name=name, browsers=browsers)
            if token is not None:
                await context.add_cookies([{"name": _COOKIE, "value": token, "url": self.base}])
            context.on("console", lambda message: self._note(message.text))
            context.on("weberror", lambda error: self._note(str(error.error)))
            context.on("dialog", self._close)
            await context.add_init_script(_WATCH)
            page = await context.new_page()
            device = await context.new_cdp_session(page)
            await device.send("WebAuthn.enable")
            authenticator = {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": True,
                "automaticPresenceSimulation": True,
            }
            await device.send("WebAuthn.addVirtualAuthenticator", {"options": authenticator})
            page.set_default_timeout(1_000 * PATIENCE)
            yield page
        finally:
            await context.close()

    async def _close(self, dialog: Dialog) -> None:
        self._note(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _note(self, text: str) -> None:
        """Collect what the browser complains about, apart from answers and dates that a test asks for.

        An open page may look once more at what is being deleted: htmx reports that answer in its own words.
        """
        if not text.startswith(("Failed to load resource", "The specified value", "Response Status Error Code 404")):
            self.violations.append(text)


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that the service executes meanwhile."""
    found: list[str] = []
    with plans.listening(lambda _conn, sql, _values: found.append(sql)):
        yield found


async def findings(page: Page, *alike: str) -> list[str]:
    """What axe finds serious or critical on a page, once its style has arrived, but for what these selectors choose."""
    await page.wait_for_load_state()
    await page.evaluate(AXE_SCRIPT)
    return list(await page.evaluate(_FINDINGS, list(alike)))


async def overflow(page: Page) -> int:
    """By how many pixels a page is wider than its window, once its style has arrived."""
    await page.wait_for_load_state()
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def add_person(
    world: ServiceWorld, role: Role, name: str = "Ada", org: str | None = None, created_by: Actor | None = None
) -> Principal:
    """A person without a passkey."""
    made = Person(random_id("per_"), org or world.org, name, role, now_ms(), created_by=created_by)
    world.service.db.write_now(lambda conn: insert_record(conn, made))
    return Principal(person_actor(made.person_id), made.org, role, None)


def sign_in(
    world: ServiceWorld,
    role: Role,
    *,
    name: str = "Ada",
    org: str | None = None,
    stepped_up: bool = True,
    browsers: Sequence[str] = ("test",),
) -> str:
    """The cookie of a new person, who is signed in with browsers of these names: that of the last."""
    by = add_person(world, role, name, org)
    now = now_ms()
    *_, token = [
        world.service.db.write_now(lambda conn, agent=one: open_session(conn, by, agent, now, way="test"))  # type: ignore[misc]
        for one in browsers
    ]
    if not stepped_up:
        forget_step_up(world)
    return token


@contextmanager
def listening(world: ServiceWorld, hub: FeedHub, org: str | None = None) -> Iterator[Queue]:
    """What the open page of somebody new is told, who is signed in."""
    one = OpenPage(org or world.org, Actor("person", "per_listening"), digest(sign_in(world, "viewer", org=org)))
    with hub.listen(one):
        yield one.queue


def forget_step_up(world: ServiceWorld) -> None:
    """As if five minutes had passed since everybody's confirmation."""
    world.service.db.write_now(
        lambda conn: conn.exec_driver_sql("UPDATE browser_sessions SET stepped_up_at = stepped_up_at - 300001")
    )


def log(world: ServiceWorld, action: str) -> list[LogEntry]:
    """The organisation's entries of an action, newest first."""
    found = world.service.db.read_now(lambda conn: log_entries(conn, world.org, LogFilter(action=action), limit=100))
    return [one for one in found.data if isinstance(one, LogEntry)]


def csrf_of(page: str) -> str:
    """The CSRF token of a page's forms."""
    found = _CSRF.search(unescape(page))
    assert found is not None
    return found[1]


async def refusals(world: ServiceWorld) -> list[tuple[str, str]]:
    """Actor and operation of what was refused, newest first."""
    for _ in range(2):  # the first may wait for a write that began before
        await world.service.part(Recorder).tick()
    return [(str(entry.actor), entry.details["operation"]) for entry in log(world, "access.refused")]


async def asking(world: ServiceWorld, *amounts: str) -> None:
    """Payments above 5 USDC that wait for an approval."""
    wallet = await world.wallet((await world.policy(requireCoSign="5"))["policy_id"], label="Spender")
    session, key, payee = await world.session(wallet), world.key("agent", wallet["wallet_id"]), await world.payee()
    for amount in amounts:
        assert (await world.pay(wallet, payee, amount, session=session, key=key)).status_code == 402


class Crafted:
    """Somebody without a browser, who sends what they like."""

    def __init__(self, world: ServiceWorld, token: str | None = None) -> None:
        transport = world.client._transport
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)
        if token is not None:
            self.client.cookies.set(_COOKIE, token)

    @property
    def token(self) -> str | None:
        return self.client.cookies.get(_COOKIE)

    async def csrf(self, path: str = "/dashboard/people") -> str:
        return csrf_of((await self.client.get(path)).text)

    async def queries(self, path: str) -> list[str]:
        """What a page asks the database, without what each request asks: who it is, and how far things have come.

        Work in the background asks meanwhile, too: the least of several looks is the page's own.
        """
        each = ["FROM browser_sessions", "max(feed.position)", "FROM audit_heads"]
        each += ["FROM organisations LEFT OUTER JOIN reserves"]
        each += ["(SELECT approval_requests.approval_id AS", "(SELECT escrows.escrow_id AS escrow_id \nFROM"]
        looks = list[list[str]]()
        for _ in range(4):
            with statements() as found:
                assert (await self.client.get(path)).status_code == 200
            looks.append([one for one in found if one.startswith("SELECT") and not any(part in one for part in each)])
        return min(looks, key=len)

    async def post(
        self, path: str, fields: dict[str, Any] | None = None, *, csrf: str | None = None, **headers: str
    ) -> httpx.Response:
        sent = {"origin": "http://localhost", **headers}
        token = csrf if csrf is not None else await self.csrf()
        return await self.client.post(path, data={"csrf": token, **(fields or {})}, headers=sent)


async def join_with(visitor: Crafted, token: str, made: Callable[[dict[str, Any]], dict[str, Any]]) -> httpx.Response:
    """Use an invitation with the passkey that is made of the options."""
    csrf, fields = await visitor.csrf("/dashboard/join"), {"name": "Grace", "token": token}
    options = (await visitor.post("/dashboard/join/options", fields, csrf=csrf, accept="application/json")).json()
    fields["credential"] = json.dumps(made(options))
    return await visitor.post("/dashboard/join", fields, csrf=csrf, accept="application/json")


async def choose(page: Page, name: str) -> None:
    """Follow a link of the menu. On a phone, `More` opens the menu first."""
    more = page.get_by_text("More", exact=True)
    if await more.is_visible():
        await more.click()
    await page.get_by_role("link", name=name, exact=True).click()


def posted(page: str) -> list[str]:
    """The addresses that the forms of a page post to."""
    return re.findall(r'method="post" action="([^"]+)"', page)
