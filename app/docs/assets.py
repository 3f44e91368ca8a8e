"""The files that pages load from the service itself, and the Content-Security-Policies of pages and diagrams."""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

_TYPES: Mapping[str, str] = {"js": "text/javascript", "svg": "image/svg+xml"}
ASSETS = frozenset({"docs.js", "icon.svg"})
"""Files of `app/docs` that are served under `/docs/assets`."""


@cache
def content(place: str) -> bytes:
    """Return the bytes of a file in `app/docs`."""
    return files("app.docs").joinpath(place).read_bytes()


def media_type(name: str) -> str:
    """Return the media type for a file's extension."""
    return _TYPES[name.rpartition(".")[2]]


@cache
def digest(name: str) -> str:
    """Return a file's SHA-256 hash in the form that a Content-Security-Policy and the attribute `integrity` accept."""
    return "sha256-" + b64encode(sha256(content(name)).digest()).decode()


def script(name: str) -> str:
    """Return the element that loads a script. Browsers refuse the script if its content does not match the hash."""
    return f'<script src="{_address(name)}" integrity="{digest(name)}" defer></script>'


def icon_link() -> str:
    """Return the element that names the pages' icon."""
    return f'<link rel="icon" type="image/svg+xml" href="{_address("icon.svg")}">'


def _address(name: str) -> str:
    # New content gets a new address, so that caches never mix two versions.
    return f"/docs/assets/{name}?v={sha256(content(name)).hexdigest()[:12]}"


_COMMON = "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
PAGES_POLICY = (
    f"{_COMMON}; style-src '{digest('style.css')}'; script-src '{digest('docs.js')}'; img-src 'self'; "
    "connect-src 'self'"
)
"""Content-Security-Policy of the documents. It allows their inline style and one script, which may fetch results."""
PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""Content-Security-Policy of the diagrams, which are pictures with an inline style."""
