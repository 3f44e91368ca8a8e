"""The files that pages load from the service itself, and the Content-Security-Policies of pages and diagrams."""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

_TYPES: Mapping[str, str] = {
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
_OWN = ("docs.js", "explorer.js", "explorer.css", "icon.svg")
#: Files of the package swagger-ui-dist. `app/docs/swagger-ui/README.md` has the version and explains how to update
#: them.
_SWAGGER = (
    "swagger-ui.css",
    "swagger-ui-bundle.js",
    "swagger-ui-bundle.js.LICENSE.txt",
    "LICENSE.txt",
    "NOTICE.txt",
)
ASSETS: Mapping[str, str] = {name: name for name in _OWN} | {name: f"swagger-ui/{name}" for name in _SWAGGER}
"""Location in `app/docs` of each served file, by its name under `/docs/assets`."""


@cache
def content(place: str) -> bytes:
    """Return a file's content."""
    return files("app.docs").joinpath(place).read_bytes()


def media_type(name: str) -> str:
    """Return the media type for a file's extension."""
    return _TYPES[name.rpartition(".")[2]]


@cache
def digest(name: str) -> str:
    """Return a file's hash as a source of a Content-Security-Policy and as a value of `integrity`."""
    return "sha256-" + b64encode(sha256(content(ASSETS.get(name, name))).digest()).decode()


def script(name: str) -> str:
    """Return the element that loads a script. Browsers refuse other content at its address."""
    return f'<script src="{_address(name)}" integrity="{digest(name)}" defer></script>'


def style_link(name: str) -> str:
    """Return the element that loads a style sheet."""
    return f'<link rel="stylesheet" href="{_address(name)}">'


def icon_link() -> str:
    """Return the element that names the pages' icon."""
    return f'<link rel="icon" type="image/svg+xml" href="{_address("icon.svg")}">'


def _address(name: str) -> str:
    # New content gets a new address, so that caches never mix two versions.
    return f"/docs/assets/{name}?v={sha256(content(ASSETS[name])).hexdigest()[:12]}"


_COMMON = "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
PAGES_POLICY = f"{_COMMON}; style-src '{digest('style.css')}'; script-src '{digest('docs.js')}'; img-src 'self'"
"""Policy of the documents. It allows their own style and one script."""
EXPLORER_POLICY = (
    f"{_COMMON}; style-src 'self'; script-src '{digest('swagger-ui-bundle.js')}' '{digest('explorer.js')}'; "
    "img-src 'self' data:; connect-src 'self'"
)
"""Policy of the explorer. The explorer may call only this service."""
PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""Policy of the diagrams, which are pictures with an inline style."""
