"""Challenges in the header WWW-Authenticate (RFC 9110, section 11.6.1)."""

import re
from collections.abc import Mapping

Challenge = Mapping[str, object]
"""A challenge: its parameters by name, as received."""

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_END = r"(?=[ \t]*(?:,|$))"
_SKIPPED = re.compile(r"[ \t,]*")
_PARAMETER = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|({_NAME})){_END}')
#: A scheme, which may be followed by a token of base64.
_SCHEME = re.compile(rf"({_NAME})(?:[ \t]+[A-Za-z0-9._~+/-]+=*{_END}|(?=[ \t,]|$))")
_ESCAPED = re.compile(r"\\(.)")
#: The end of unreadable text, before a scheme with a parameter.
_NEXT = re.compile(rf",[ \t]*(?={_NAME}[ \t]+{_NAME}[ \t]*=)")


def challenges_in(header: str) -> list[tuple[str, Challenge | str]]:
    """Return the challenges in the values of WWW-Authenticate, joined by commas, each with its scheme.

    A malformed challenge is represented by its fault. After unreadable text, reading continues at the next scheme with
    a parameter. The server writes the whole header, so it gains nothing by text that passes for a challenge.
    """
    found: list[tuple[str, Challenge | str]] = []
    parameters: dict[str, object] | None = None
    at = _skip(header, 0)
    while at < len(header):
        if parameter := _PARAMETER.match(header, at):
            name, quoted, bare = parameter.groups()
            if parameters is not None and name.lower() in parameters:
                found[-1] = (found[-1][0], f"it has two parameters {name.lower()[:16]!r}")
            elif parameters is not None:
                parameters[name.lower()] = bare if quoted is None else _ESCAPED.sub(r"\1", quoted)
            at = _skip(header, parameter.end())
        elif begun := _SCHEME.match(header, at):
            parameters = {}
            found.append((begun[1], parameters))
            at = _skip(header, begun.end())
        else:
            if parameters is not None:
                found[-1] = (found[-1][0], "its parameters cannot be read")
            parameters, following = None, _NEXT.search(header, at)
            at = following.end() if following else len(header)
    return found


def _skip(header: str, at: int) -> int:
    skipped = _SKIPPED.match(header, at)
    return skipped.end() if skipped else at
