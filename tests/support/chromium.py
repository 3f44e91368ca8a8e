"""Debian's Chromium, without a window."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

from tests.support.needs import skip_or_fail

#: The first installed program is used. The full browser draws an invisible window with tabs: a profile with one page
#: then takes four times as much processor time as in the headless shell, which draws only the page.
_PROGRAMS = ("chromium-headless-shell", "chromium")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Yield a running browser.

    Each browser context is a profile. If Chromium is not installed, skip the test, or fail in CI.
    """
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        skip_or_fail(f"there is no {_PROGRAMS[0]}: install Debian's package of that name")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        await browser.close()
