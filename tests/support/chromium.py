"""Debian's Chromium, without a window."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

from tests.support.needs import skip_or_fail

_PROGRAM = "/usr/bin/chromium"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Yield a running browser; each of its contexts is a profile. Without it, skip the test, or fail if CI=true."""
    if not os.path.exists(_PROGRAM):  # noqa: ASYNC240, PTH110 - once, before anything runs
        skip_or_fail(f"there is no {_PROGRAM}: install Debian's package chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=_PROGRAM, args=["--no-sandbox"])
        yield browser
        await browser.close()
