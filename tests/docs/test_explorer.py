"""The explorer is the published package, and calls the service that served it, in a real browser."""

import hashlib
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser

import app.docs
from tests.docs.browser import opened
from tests.support.http import served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_FOLDER = Path(app.docs.__file__).parent / "swagger-ui"


async def test_files_are_those_of_the_named_version() -> None:
    text = (_FOLDER / "README.md").read_text()

    named = dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", text, re.MULTILINE))

    assert set(named) == {"swagger-ui.css", "swagger-ui-bundle.js"}
    for name, digest in named.items():
        assert hashlib.sha256((_FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert "Apache License" in (_FOLDER / "LICENSE.txt").read_text()


async def test_explorer_calls_the_service_that_served_it(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base) as page:
        await page.goto("/docs/explorer")
        await page.get_by_role("button", name="Authorize").click()
        await page.get_by_label("Value").fill(world.keys["admin"])
        await page.get_by_role("button", name="Apply credentials").click()
        await page.get_by_role("button", name="Close").click()

        await page.locator("#operations-tag-policies").click()
        await page.locator("#operations-policies-create_policy .opblock-summary-control").click()
        await page.locator("#operations-policies-create_policy .execute").click()

        answer = page.locator("#operations-policies-create_policy .live-responses-table .response-col_description")
        await answer.get_by_text('"policy_id"').first.wait_for()
        [made] = [one for one in (await world.ok("GET", "/v1/policies"))["data"] if one["name"] == "Shopping"]
        assert made["max_per_tx"] == "5.00"
