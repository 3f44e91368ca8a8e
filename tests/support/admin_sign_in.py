"""Signs in to the dashboard of a service in another process."""

import re

import httpx

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


async def sign_in(browser: httpx.AsyncClient, admin_key: str) -> None:
    """Sign in with an admin key of an organisation without people. The browser keeps the session's cookie."""
    form = _CSRF.search((await browser.get("/dashboard/sign-in")).text)
    assert form is not None
    fields = {"csrf": form[1], "admin_key": admin_key}
    origin = str(browser.base_url).rstrip("/")
    answer = await browser.post("/dashboard/sign-in", data=fields, headers={"origin": origin})
    assert answer.status_code == 303, answer.text
