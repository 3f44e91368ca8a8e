"""Makes a picture of every page with real data, light, dark and on a phone.

By hand: `python -m tests.dashboard.screenshots FOLDER`; needs Debian's Chromium. The README's pictures are made by
`python -m tests.dashboard.screenshots --window docs/pictures fleet-light vault-dark approvals-light fleet-phone`.
"""

import asyncio
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from app.core import logs
from tests.dashboard.browsing import Served, sign_in
from tests.dashboard.every_page import PAGES
from tests.dashboard.showcase import company
from tests.support.chromium import chromium
from tests.support.http import served

_WINDOW = {"width": 1280, "height": 800}
_LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": _WINDOW},
    "dark": {"viewport": _WINDOW, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    },
}
_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:142.0) Gecko/20100101 Firefox/142.0"
_COMPLETE = "!document.querySelector('time:not([data-local])')"


async def _take(folder: Path, names: Collection[str], *, whole: bool) -> None:
    """Write the pictures of these names, or all, of the whole page or of what a window shows at first."""
    with tempfile.TemporaryDirectory() as data:
        async with company(Path(data)) as (world, places), served(world) as base, chromium() as browser:
            site = Served(world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")
            token = sign_in(world, "admin", name="Ada Lovelace", browsers=[_BROWSER])
            for look, options in _LOOKS.items():
                async with site.visit(token=token, **options) as admin, site.visit(**options) as nobody:
                    for listed in PAGES:
                        if names and f"{listed.name}-{look}" not in names:
                            continue
                        page, path = admin if listed.session else nobody, folder / f"{listed.name}-{look}.png"
                        await page.goto(site.base + listed.route.format_map(places))
                        await page.wait_for_function(_COMPLETE)
                        await page.screenshot(path=path, full_page=whole, animations="disabled")
                        print(path, flush=True)
            await browser.close()


@click.command()
@click.option("--window", is_flag=True, help="Only what a window shows at first.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("names", nargs=-1)
def main(folder: Path, names: tuple[str, ...], *, window: bool) -> None:
    """Make the pictures of these NAMES, such as fleet-light, or all; see the module."""
    logs.configure("error", sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take(folder, names, whole=not window))


if __name__ == "__main__":
    main()
