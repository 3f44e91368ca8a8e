"""The API's operations as described in its OpenAPI document, callable by id with snake_case arguments."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx

from app.core.http_api import FIRST_CALL, PREFER_FIRST_CALL
from app.core.text import CONTROL

Json = dict[str, Any]

_JSON = "application/json"
REQUEST_HEADERS: Mapping[str, str] = {"content-type": _JSON, "prefer": PREFER_FIRST_CALL}
"""Headers of every request, in addition to the caller's credentials."""
_REFERENCE = "#/components/schemas/"
_TYPES = {"integer": int, "string": str}
_PLAIN_TEXT = f"^[^{CONTROL}]*$"
#: Members of schemas that are not listed to clients. Titles only repeat names. If a model copied an example, it could
#: confirm a check that it has not made.
_LEFT_OUT = frozenset({"title", "examples", "default"})
_CAMEL = re.compile(r"(?<!^)(?=[A-Z])")
#: Maximum number of characters of an argument in the path or query. No operation accepts a longer argument.
_MAX_PARAMETER = 4_096


@dataclass(frozen=True, slots=True)
class Reply:
    """The API's reply: a status and a JSON body. The status is 0 if no reply with a JSON object arrived.

    ``first_called_at`` is the time of the first request with the same idempotency key, if this request repeats it.
    """

    status: int
    body: Json
    retry_after: str | None = None
    first_called_at: str | None = None

    @property
    def good(self) -> bool:
        """True if the request succeeded."""
        return self.status == 200


class BadArgumentError(Exception):
    """An argument is missing, malformed or too long, so no request can be made. The message states the problem."""


class Operation:
    """One operation: the places of its arguments in a request, and their schemas."""

    def __init__(self, document: Json, method: str, path: str, described: Json) -> None:
        self.id, self.method, self.path = described["operationId"], method, path
        self._parameters: Mapping[str, Json] = {
            _snake(one["name"]): one for one in described["parameters"] if one["in"] in {"path", "query"}
        }
        content = described.get("requestBody", {}).get("content", {})
        body = document["components"]["schemas"][_name_of(content[_JSON]["schema"])] if content else {}
        self._body: Mapping[str, Json] = {_snake(name): schema for name, schema in body.get("properties", {}).items()}
        self._required = {_snake(name) for name in body.get("required", ())}

    def arguments(self) -> Json:
        """Return the JSON schema of each argument."""
        schemas = {name: {**one["schema"], "description": one["description"]} for name, one in self._parameters.items()}
        return {name: _listed(one) for name, one in {**schemas, **self._body}.items()}

    def required(self) -> set[str]:
        """Return the names of the arguments that the operation requires."""
        return self._required | {name for name, one in self._parameters.items() if one["required"]}

    def request(self, arguments: Mapping[str, Any]) -> tuple[dict[str, str], str, bytes]:
        """Return the path's values, the query and the body of a request, without the arguments that are None.

        Unknown arguments go into the query or the body, so that the API refuses them by name. Raises BadArgumentError
        if an argument is missing, malformed or too long.
        """
        path, query, rest = {}, {}, {}
        for name, value in arguments.items():
            if value is None:
                continue
            parameter = self._parameters.get(name)
            if parameter is not None and type(value) is not (expected := _TYPES[parameter["schema"]["type"]]):
                # A URL contains only text, so the API could not detect a wrong type.
                raise BadArgumentError(f"{name}: must be {'an integer' if expected is int else 'a string'}.")
            if parameter is not None and len(str(value)) > _MAX_PARAMETER:
                raise BadArgumentError(f"{name}: is too long. Shorten it.")
            if parameter is not None and parameter["in"] == "path":
                if "/" in value or value.strip(".") == "" or not value.isprintable():
                    # HTTP clients resolve a segment of dots, so the path would become another operation's.
                    raise BadArgumentError(f"{name}: the organisation has no object with this id.")
                path[parameter["name"]] = value
            elif self.method == "GET":
                query[parameter["name"] if parameter else name] = value
            else:
                rest[name] = value
        if missing := [name for name in re.findall(r"\{(\w+)\}", self.path) if name not in path]:
            raise BadArgumentError(f"{missing[0]}: is required.")
        try:
            return path, urlencode(query), b"" if self.method == "GET" else json.dumps(rest, allow_nan=False).encode()
        except ValueError:
            raise BadArgumentError("A number is not finite, or a text is not Unicode. Correct the arguments.") from None


#: Sends a request with one caller's credentials. Raises httpx.HTTPError if no response arrives.
Send = Callable[[Operation, dict[str, str], str, bytes], Awaitable[httpx.Response]]


class Operations:
    """All operations of a document, by id."""

    def __init__(self, document: Json) -> None:
        self._by_id = {
            one["operationId"]: Operation(document, method.upper(), path, one)
            for path, methods in document["paths"].items()
            for method, one in methods.items()
        }

        names = {name for one in document["components"]["schemas"].values() for name in one.get("properties", ())}
        described = (one for methods in document["paths"].values() for one in methods.values())
        names |= {one["name"] for each in described for one in each["parameters"] if one["in"] in {"path", "query"}}
        camel = sorted(name for name in names if _snake(name) != name)
        self._camel = re.compile(rf"\b({'|'.join(camel)})\b")

    def __getitem__(self, operation_id: str) -> Operation:
        return self._by_id[operation_id]

    def in_arguments(self, text: str) -> str:
        """Return a message with its field names in snake case, as the tools' arguments are named."""
        return self._camel.sub(lambda found: _snake(found[0]), text)


class Api:
    """The API with one caller's credentials."""

    def __init__(self, send: Send, operations: Operations) -> None:
        self._send = send
        self.operations = operations

    async def call(self, operation_id: str, arguments: Mapping[str, Any]) -> Reply:
        """Send a request and return the reply, including error replies. Raises BadArgumentError."""
        operation = self.operations[operation_id]
        request = operation.request(arguments)
        try:
            response = await self._send(operation, *request)
            body = response.json()
        except (httpx.HTTPError, ValueError):
            return Reply(0, {})
        if not isinstance(body, dict):
            return Reply(0, {})
        if response.is_error and "message" in body.get("error", {}):
            body["error"]["message"] = self.operations.in_arguments(body["error"]["message"])
        headers = response.headers
        return Reply(response.status_code, body, headers.get("Retry-After"), headers.get(FIRST_CALL))


def _listed(schema: Json) -> Json:
    """Return an argument's schema as listed to clients. The strict converters of agent frameworks accept it."""
    kept = {name: value for name, value in schema.items() if name not in _LEFT_OUT and value != _PLAIN_TEXT}
    if "default" in schema:
        kept["description"] = f"{kept['description']} By default `{schema['default']}`."
    if "anyOf" in schema:
        # Strict converters reject an object type that permits arbitrary member names.
        kept["anyOf"] = [_listed(one) for one in schema["anyOf"] if not one.get("additionalProperties")]
    return kept


def _snake(name: str) -> str:
    return _CAMEL.sub("_", name).lower()


def _name_of(reference: Json) -> str:
    return str(reference["$ref"]).removeprefix(_REFERENCE)
