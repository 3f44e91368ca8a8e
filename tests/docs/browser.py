"""A real browser for the documents."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page


@asynccontextmanager
async def opened(browser: Browser, base_url: str, **options: Any) -> AsyncIterator[Page]:
    """Yield a page of a new browser profile. Its relative addresses begin with ``base_url``.

    Fails the test if the page has logged an error, such as a refusal by a Content-Security-Policy.
    """
    errors: list[str] = []
    context = await browser.new_context(base_url=base_url, **options)
    try:
        page = await context.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
    finally:
        await context.close()
    if errors:
        pytest.fail("\n".join(errors))
