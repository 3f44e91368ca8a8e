"""Parses JSON bodies and query strings. Error messages repeat no text of the request except an amount's digits."""

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from app.core.errors import RequestError


def _refuse_constant(_name: str) -> Any:
    raise ValueError("not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RequestError("invalid_request", "The body contains a name twice. Send each name once.")
    return found


def _number(text: str) -> float:
    """Return a number. JSON has only one kind of number, so `60.0` becomes the integer 60."""
    found = float(text)
    return int(found) if found.is_integer() else found


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_refuse_constant, object_pairs_hook=_unique)


#: A body above the limit is still read and discarded, up to this many times the limit. Otherwise, a client that is
#: still sending might miss the response.
_DROPPED = 16
#: Maximum number of fields in a form. A page of the dashboard has 30 rows to select.
_MAX_FIELDS = 200
#: Response header that tells client and server that the rest of the body stays unread.
_CLOSE = {"Connection": "close"}


async def read_json(request: Request, *, empty: bool, limit: int, seconds: float) -> dict[str, Any]:
    """Return the body of at most ``limit`` bytes as a JSON object. With ``empty``, a missing body is an empty object.

    Raises ``invalid_request`` for any other body, ``request_too_large`` above the limit, and ``request_timeout`` if the
    body takes longer than ``seconds``.
    """
    raw = (await _read(request, limit=limit, seconds=seconds)).removeprefix(BOM_UTF8)
    if not raw:
        if empty:
            return {}
        raise RequestError("invalid_request", "The body is missing. Send a JSON object.")
    if _media_type(request, "application/json") != "application/json":
        raise RequestError("invalid_request", "The body must be JSON (Content-Type: application/json).")
    try:
        found = json_object(raw.decode())
    except (ValueError, RecursionError):
        raise RequestError("invalid_request", "The body is not valid JSON.") from None
    if found is None:
        raise RequestError("invalid_request", "The body must be a JSON object.")
    return found


def json_object(text: str) -> dict[str, Any] | None:
    """Return a JSON object, or None for any other JSON value.

    Raises ValueError or RecursionError for invalid JSON, and ``invalid_request`` for a name given twice.
    """
    found = _DECODER.decode(text)
    return found if isinstance(found, dict) else None


async def read_form(request: Request, *, limit: int, seconds: float) -> list[tuple[str, str]]:
    """Return the fields of a submitted form, in the order of the page. Raises the errors of ``read_json``."""
    raw = await _read(request, limit=limit, seconds=seconds)
    if _media_type(request, "") != "application/x-www-form-urlencoded":
        raise RequestError("invalid_request", "The body must be a URL-encoded form.")
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise RequestError("invalid_request", "The body is not a valid form.") from None


def _media_type(request: Request, default: str) -> str:
    return request.headers.get("content-type", default).partition(";")[0].strip().lower()


async def _read(request: Request, *, limit: int, seconds: float) -> bytes:
    """Return the bytes of the body.

    Raises ``invalid_request`` if it ends early, ``request_too_large`` above ``limit``, and ``request_timeout`` if it
    takes longer than ``seconds``.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit * _DROPPED:
        raise RequestError("request_too_large", headers=_CLOSE)
    raw, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit * _DROPPED:
                    break
                if size <= limit:
                    raw += chunk
    except ClientDisconnect:
        raise RequestError("invalid_request", "The body ended early. Send the request again.") from None
    except TimeoutError:
        raise RequestError("request_timeout", headers=_CLOSE) from None
    if size > limit:
        raise RequestError("request_too_large", headers=_CLOSE)
    return bytes(raw)


def query_items(request: Request) -> dict[str, Any]:
    """Return the query parameters. Raises ``invalid_request`` if one is given twice."""
    items = request.query_params.multi_items()
    found = dict(items)
    if len(found) != len(items):
        raise RequestError("invalid_request", "A query parameter occurs twice. Send each parameter once.")
    return found


_WHOLE_NUMBER = "must be a whole number"

#: Messages for pydantic's own errors, because its texts name Python types. This service's validators have their own
#: messages.
_WORDS: Mapping[str, str] = {
    "missing": "is required",
    "extra_forbidden": "is unknown to this request",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_parsing_size": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "literal_error": "must be {expected}",
    "list_type": "must be an array",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have at most {max_length} items",
    "model_type": "must be an object",
    "dict_type": "must be an object",
}


def validation_error(error: ValidationError, whole: str) -> RequestError:
    """Return the API's error for the first fault that pydantic found. ``whole`` is "body" or "query"."""
    first = error.errors(include_url=False, include_input=False)[0]
    code = first["type"] if first["type"] in ("invalid_amount", "invalid_recipient") else "invalid_request"
    place = ".".join(str(part) for part in first["loc"])
    # An unknown name may contain any text. It is escaped and shortened, so that it cannot harm logs and terminals.
    place = ascii(place)[1:-1][:80] if place else whole
    return RequestError(code, f"{place}: {_words(first)}.")


def field_messages(error: ValidationError) -> dict[str, str]:
    """Return the first message about each field, by the field's name in the API. The key `""` means the whole body.

    A field inside an object is named by both names, joined by `_`.

    Each message is a sentence. One about an entry of a list begins with the entry's number. One about an amount with a
    comma before its decimals suggests the amount with a point.
    """
    found: dict[str, str] = {}
    for one in error.errors(include_url=False):
        names = list(takewhile(lambda part: isinstance(part, str), one["loc"]))
        entries = [f"Entry {part + 1} " for part in one["loc"] if isinstance(part, int)][:1]
        says = _words(one)
        subject = "".join(entries) or ("This field " if says[:1].islower() else "")
        comma = re.fullmatch(r"([0-9]+),([0-9]{1,6})", str(one["input"])) if one["type"] == "invalid_amount" else None
        hint = f" Did you mean {comma[1]}.{comma[2]}?" if comma else ""
        found.setdefault("_".join(map(str, names)), f"{subject}{says}.{hint}")
    return found


def _words(one: ErrorDetails) -> str:
    return _WORDS[one["type"]].format_map(one.get("ctx", {})) if one["type"] in _WORDS else one["msg"]
