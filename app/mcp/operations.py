"""The API's operations as described in its OpenAPI document, callable by id with snake_case arguments."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from app.core.http_api import FIRST_CALL, PREFER_FIRST_CALL

Json = dict[str, Any]

_JSON = "application/json"
_REFERENCE = "#/components/schemas/"
_TYPES = {"integer": int, "string": str}
_CAMEL = re.compile(r"(?<!^)(?=[A-Z])")


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
        self._schemas: Json = document["components"]["schemas"]
        self.method, self.path = method, path
        self._parameters: Mapping[str, Json] = {
            _snake(one["name"]): one for one in described["parameters"] if one["in"] in {"path", "query"}
        }
        content = described.get("requestBody", {}).get("content", {})
        body = self._schemas[_name_of(content[_JSON]["schema"])] if content else {}
        self._body: Mapping[str, Json] = {_snake(name): schema for name, schema in body.get("properties", {}).items()}
        self._required = {_snake(name) for name in body.get("required", ())}
        answer = described["responses"]["200"]["content"][_JSON]["schema"]
        # If there are two response schemas, the first is the operation's own. The second is for changes that are signed
        # elsewhere.
        self.answer = _name_of(answer.get("anyOf", [answer])[0])

    def arguments(self) -> Json:
        """Return the JSON schema of each argument."""
        schemas = {name: {**one["schema"], "description": one["description"]} for name, one in self._parameters.items()}
        # The titles only repeat the names.
        return {
            name: {key: value for key, value in schema.items() if key != "title"}
            for name, schema in {**schemas, **self._body}.items()
        }

    def required(self) -> set[str]:
        """Return the names of the arguments that the operation requires."""
        return self._required | {name for name, one in self._parameters.items() if one["required"]}

    def request(self, arguments: Mapping[str, Any]) -> Json:
        """Return the request as arguments of httpx. Leave out arguments that are None. Raises BadArgumentError.

        Unknown arguments go into the query or the body, so that the API refuses them by name.
        """
        path, query, rest = self.path, {}, {}
        for name, value in arguments.items():
            if value is None:
                continue
            parameter = self._parameters.get(name)
            if parameter is not None and type(value) is not (expected := _TYPES[parameter["schema"]["type"]]):
                # A URL contains only text, so the API could not detect a wrong type.
                raise BadArgumentError(f"{name}: must be {'an integer' if expected is int else 'a string'}.")
            if parameter is not None and parameter["in"] == "path":
                if str(value).strip(".") == "":
                    # HTTP clients resolve a segment of dots, so the path would become another operation's.
                    raise BadArgumentError(f"{name}: must be an id.")
                path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
            elif self.method == "GET":
                query[parameter["name"] if parameter else name] = value
            else:
                rest[name] = value
        if missing := re.search(r"\{(\w+)\}", path):
            raise BadArgumentError(f"{missing[1]}: is required.")
        request: Json = {"method": self.method, "url": path}
        return request | ({"params": query} if self.method == "GET" else {"json": rest})

    def schemas(self, name: str) -> Json:
        """Return a schema and all schemas it refers to, by name, with references into `$defs`."""
        found: Json = {}
        open_names = {name}
        while open_names:
            one = open_names.pop()
            text = json.dumps(self._schemas[one])
            found[one] = json.loads(text.replace(_REFERENCE, "#/$defs/"))
            open_names |= set(re.findall(_REFERENCE + r"(\w+)", text)) - found.keys()
        return found


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
        """Return a message with its field names written as argument names."""
        return self._camel.sub(lambda found: _snake(found[0]), text)


class Api:
    """The API with one caller's credentials."""

    def __init__(self, client: httpx.AsyncClient, operations: Operations) -> None:
        self._client = client
        self.operations = operations

    async def call(self, operation_id: str, arguments: Mapping[str, Any]) -> Reply:
        """Send a request and return the reply, including error replies. Raises BadArgumentError."""
        described = self.operations[operation_id].request(arguments)
        try:
            request = self._client.build_request(**described, headers={"Prefer": PREFER_FIRST_CALL})
        except (ValueError, httpx.InvalidURL):
            raise BadArgumentError(
                "A number is not finite, or an argument is too long. Correct the arguments."
            ) from None
        try:
            response = await self._client.send(request)
            body = response.json()
        except (httpx.HTTPError, ValueError):
            return Reply(0, {})
        if not isinstance(body, dict):
            return Reply(0, {})
        if response.is_error and "message" in body.get("error", {}):
            body["error"]["message"] = self.operations.in_arguments(body["error"]["message"])
        headers = response.headers
        return Reply(response.status_code, body, headers.get("Retry-After"), headers.get(FIRST_CALL))


def _snake(name: str) -> str:
    return _CAMEL.sub("_", name).lower()


def _name_of(reference: Json) -> str:
    return str(reference["$ref"]).removeprefix(_REFERENCE)
