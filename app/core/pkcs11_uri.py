"""PKCS#11 URIs (RFC 7512), which name a private key in a token and the file with the token's PIN."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

SCHEME = "pkcs11:"

#: Attributes that select the token, with their names in `python-pkcs11`.
_TOKEN = {"token": "token_label", "serial": "serial", "manufacturer": "manufacturer_id", "model": "model"}
_PATH = frozenset({*_TOKEN, "object", "id", "type"})
_QUERY = frozenset({"module-path", "pin-source"})


@dataclass(frozen=True, slots=True)
class Pkcs11Uri:
    """A private key in a token.

    ``token`` has the attributes that select the token; ``label`` and ``key_id`` select the key. The file
    ``pin_source`` contains the PIN.
    """

    module: Path
    token: Mapping[str, str]
    label: str | None
    key_id: bytes | None
    pin_source: Path


def parse_pkcs11_uri(text: str) -> Pkcs11Uri:
    """Return the key that a URI names. Raises ValueError; its message shows no value of the URI."""
    path, _, query = text.removeprefix(SCHEME).partition("?")
    attributes = _attributes(path, ";", _PATH)
    options = _attributes(query, "&", _QUERY)
    if not _TOKEN.keys() & attributes.keys():
        raise ValueError("the URI must name the token, as in pkcs11:token=...")
    if not {"object", "id"} & attributes.keys():
        raise ValueError("the URI must name the key by object=... or id=...")
    if unquote(attributes.get("type", "private")) != "private":
        raise ValueError("the URI's type must be private")
    return Pkcs11Uri(
        module=_absolute(options, "module-path"),
        token={name: unquote(attributes[ours]) for ours, name in _TOKEN.items() if ours in attributes},
        label=unquote(attributes["object"]) if "object" in attributes else None,
        key_id=unquote_to_bytes(attributes["id"]) if "id" in attributes else None,
        pin_source=_absolute(options, "pin-source"),
    )


def _attributes(text: str, separator: str, known: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split(separator)):
        name, equals, value = part.partition("=")
        if name == "pin-value":
            raise ValueError("the URI must not contain the PIN (pin-value): name a file with pin-source=file:...")
        if name not in known:
            # A misspelt attribute could otherwise select another key.
            shown = name if name.isascii() and name.replace("-", "").isalnum() and len(name) <= 32 else "one"
            raise ValueError(f"the URI has an attribute that this service does not support: {shown}")
        if not equals or not value:
            raise ValueError(f"the URI's {name} has no value")
        if name in found:
            raise ValueError(f"the URI has {name} twice")
        found[name] = value
    return found


def _absolute(options: Mapping[str, str], name: str) -> Path:
    """Return the absolute path in an option. The option may be a `file:` URI."""
    if name not in options:
        raise ValueError(f"the URI has no {name}")
    given = unquote(options[name])
    if given.startswith("file:"):
        parts = urlsplit(options[name])
        given = unquote(parts.path) if parts.netloc in {"", "localhost"} else ""
    path = Path(given)
    if not path.is_absolute():
        raise ValueError(f"the URI's {name} must be the absolute path of a file, or a file: URI with one")
    return path
