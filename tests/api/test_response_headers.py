"""Headers that protect an answer: caches keep no secret, browsers guess no type and show no page in a frame."""

import base64
import hashlib
import re

import httpx
import pytest

from app.core.timestamps import now_ms, parse_iso_ms
from tests.support.http import PATIENCE, listening
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves("Authentication: Caches and browsers")
async def test_answers_with_secrets_are_kept_by_no_cache(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    made = await world.ok("POST", "/v1/keys", {"role": "viewer"})
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]})
    export = await world.ok("POST", "/v1/transactions/export", {"format": "csv"})

    for method, path, body in (
        ("POST", "/v1/keys", {"role": "viewer", "idempotencyKey": "cached"}),
        ("POST", "/v1/keys", {"role": "viewer", "idempotencyKey": "cached"}),
        ("POST", f"/v1/keys/{made['key_id']}/rotate", {}),
        ("POST", f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {}),
        ("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]}),
        ("POST", f"/v1/webhooks/{hook['webhook_id']}/rotate-secret", {}),
        ("GET", f"/v1/transactions/exports/{export['export_id']}", None),
    ):
        response = await world.call(method, path, body)
        assert response.status_code == 200, response.text
        assert response.headers.get_list("cache-control") == ["no-store"], path


@pytest.mark.proves("Authentication: Caches and browsers")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/wallets", 200),
        ("GET", "/v1/wallets/wal_unknown", 404),
        ("PUT", "/v1/wallets", 405),
        ("GET", "/v1/transactions/exports/exp_x/download", 403),
        ("GET", "/docs", 200),
        ("GET", "/docs/errors/unknown", 404),
        ("GET", "/openapi.json", 200),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
    ],
)
async def test_no_answer_lets_a_browser_guess_its_type(
    world: ServiceWorld, method: str, path: str, status: int
) -> None:
    response = await world.call(method, path)

    assert response.status_code == status
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_what_is_not_http_is_answered_with_the_same_headers(world: ServiceWorld) -> None:
    async with listening(world, PATIENCE) as port, httpx.AsyncClient() as client:
        response = await client.request("BREW", f"http://127.0.0.1:{port}/v1/wallets")

    assert response.status_code == 400
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.proves("Conventions: Service's time")
@pytest.mark.parametrize("path", ["/v1/wallets", "/v1/wallets/wal_unknown", "/healthz"])
async def test_every_response_tells_the_time_by_which_keys_end(world: ServiceWorld, path: str) -> None:
    before = now_ms()
    response = await world.call("GET", path)

    assert before <= parse_iso_ms(response.headers["service-time"]) <= now_ms()


@pytest.mark.proves("Authentication: Caches and browsers", "GET /docs/assets/{name}", "GET /docs.md")
@pytest.mark.parametrize(
    "path",
    [
        "/docs",
        "/docs.md",
        "/docs/api",
        "/docs/api/wallets",
        "/docs/api/create_payment",
        "/docs/api.md",
        "/docs/nothing",
        "/docs/search?q=freeze",
        "/docs/guides/escrow",
        "/docs/errors",
        "/docs/errors/policy_violation",
        "/docs/events",
        "/docs/settings",
        "/docs/reference",
        "/openapi.json",
    ],
)
async def test_documents_load_only_their_own_and_are_shown_in_no_frame(world: ServiceWorld, path: str) -> None:
    response = await world.client.get(path, headers={"Accept": "text/html"})

    directives = _directives(response)
    styles, script = directives.pop("style-src"), directives.pop("script-src")
    assert directives == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "img-src": "'self'",
        "connect-src": "'self'",
    }
    if not response.headers["content-type"].startswith("text/html"):
        return
    [style] = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    assert styles == f"'{_digest(style.encode())}'"
    [(address, integrity)] = re.findall(r'<script src="([^"]+)" integrity="([^"]+)" defer></script>', response.text)
    assert script == f"'{integrity}'"
    assert integrity == _digest((await world.client.get(address)).content)
    assert response.text.count("<script") == 1
    assert not re.search(r"\sstyle=|<[^>]*\son\w+=", response.text)


def _directives(response: httpx.Response) -> dict[str, str]:
    [policy] = response.headers.get_list("content-security-policy")
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


def _digest(content: bytes) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"
