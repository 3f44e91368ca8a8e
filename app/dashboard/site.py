"""The dashboard's address, cookie, templates and static files."""

import hashlib
from dataclasses import dataclass
from functools import cache
from hmac import compare_digest
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from app.core.errors import AuthenticationError
from app.core.hosts import is_loopback
from app.core.settings import Settings
from app.dashboard.forms.formatting import FILTERS
from app.people.relying_party import RelyingParty, relying_party
from app.people.sessions import csrf_token

ROOT = "/dashboard"
_COOKIE = "agent-vault-session"
_MONTH = 30 * 86_400
_REQUESTED, _REMEMBERED = "-requested", 600
_STATIC = Path(str(files("app.dashboard") / "static"))

#: Allows only scripts and styles from the dashboard's own files, no other host, and no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    # With `no-referrer`, browsers would send `Origin: null` with the dashboard's own forms.
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Site:
    """The dashboard of a service. ``base`` is the path prefix of its pages as seen by browsers."""

    party: RelyingParty
    base: str

    @classmethod
    def of(cls, settings: Settings) -> "Site":
        """Return the dashboard for these settings.

        Raises ConfigurationError under the same conditions as ``relying_party``.
        """
        party = relying_party(settings)
        return cls(party, party.prefix + ROOT)

    @property
    def cookie(self) -> str:
        """The cookie's name. Browsers accept the prefix `__Host-` only with https, this host and the path `/`."""
        return f"__Host-{_COOKIE}" if self.party.secure else _COOKIE

    def origin(self, request: Request) -> str:
        """Return the origin of the dashboard's pages."""
        return self.party.origin_at(request.headers.get("host", ""))

    def elsewhere(self, request: Request) -> str | None:
        """Return the redirection target of a request, or None if it needs no redirection.

        Without https, a request to a loopback address is redirected to `localhost`, because passkeys need a host name.
        """
        host = request.url.hostname or ""
        if self.party.secure or host == self.party.id or not is_loopback(host):
            return None
        port = f":{request.url.port}" if request.url.port else ""
        query = f"?{request.url.query}" if request.url.query else ""
        return f"http://{self.party.id}{port}{self.party.prefix}{request.url.path}{query}"

    def check_source(self, request: Request, sent: str) -> None:
        """Require that a form was sent by a page of the dashboard, with the CSRF token ``sent``.

        Raises ``host_not_allowed`` for a different `Origin`, and ``form_outdated`` without the browser's CSRF token.
        """
        token = request.cookies.get(self.cookie)
        if request.headers.get("origin") != self.origin(request):
            raise AuthenticationError("host_not_allowed", "The form was not sent by a page of this dashboard.")
        if token is None or not compare_digest(sent.encode(), csrf_token(token).encode()):
            raise AuthenticationError("form_outdated")

    def set_cookie(self, response: Response, token: str) -> None:
        """Set the browser's cookie to a token, replacing an earlier one."""
        response.set_cookie(
            self.cookie, token, max_age=_MONTH, path="/", secure=self.party.secure, httponly=True, samesite="lax"
        )

    def to_sign_in(self, request: Request) -> Response:
        """Redirect a visitor without a session to the sign-in.

        The requested page is stored, unless a script sent the request.
        """
        response = RedirectResponse(f"{self.base}/sign-in", 303, headers=HEADERS)
        if "text/html" in request.headers.get("accept", ""):
            self.remember(response, quote(self.party.prefix + request.url.path))
        return response

    def remember(self, response: Response, path: str) -> None:
        """Store the page that a visitor without a session requested. The next sign-in leads to it."""
        flags: dict[str, Any] = {"path": "/", "secure": self.party.secure, "httponly": True, "samesite": "lax"}
        response.set_cookie(self.cookie + _REQUESTED, path, max_age=_REMEMBERED, **flags)

    def requested(self, request: Request) -> str:
        """Return the stored page, or an empty text. Only pages of the dashboard are returned."""
        path = request.cookies.get(self.cookie + _REQUESTED, "")
        return path if path.startswith(f"{self.base}/") else ""


def on_dashboard(path: str) -> bool:
    """Return True if a path belongs to the dashboard."""
    return path == ROOT or path.startswith(ROOT + "/")


def template(name: str, **context: Any) -> str:
    """Return a rendered template. All values except markup are escaped."""
    return _environment().get_template(name).render(context)


def load_templates() -> None:
    """Compile all templates. Otherwise, each page's first request would block the event loop."""
    for name in _environment().list_templates(["html"]):
        _environment().get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("app.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals["static"] = lambda name: f"{name}?v={_version()}"
    return made


@cache
def _version() -> str:
    """Return a digest that changes with any static file, so that browsers may cache the files forever."""
    digest = hashlib.sha256()
    for path in sorted(_STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_FILES = StaticFiles(packages=[("app.dashboard", "static")])


async def static(request: Request) -> Response:
    """Serve a static file."""
    response = await _FILES.get_response(request.path_params["path"], request.scope)
    current = request.query_params.get("v") == _version()
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if current else "no-cache"
    response.headers["Content-Security-Policy"] = POLICY
    return response


def wants_json(request: Request) -> bool:
    """Return True if a script sent the request and expects JSON."""
    return request.headers.get("accept") == "application/json"
