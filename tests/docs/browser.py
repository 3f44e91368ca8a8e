"""A real browser for the documents."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

from tests.support.needs import skip_or_fail


@contextlib.asynccontextmanager
async def opened(base_url: str, **options: Any) -> AsyncIterator[Page]:
    """Yield a page of Chromium whose addresses begin with ``base_url``; it must have logged no error in the end.

    Refusals by a Content-Security-Policy are such errors. Without Chromium, skip, or fail if CI=true.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        skip_or_fail("chromium is not installed")
    errors: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page = await (await browser.new_context(base_url=base_url, **options)).new_page()
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            yield page
        finally:
            await browser.close()
    if errors:
        pytest.fail("\n".join(errors))


PHONE: Mapping[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
"""Options of a phone's page."""
