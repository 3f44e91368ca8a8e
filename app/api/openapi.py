"""The OpenAPI 3.1 document, built from the operations that the routes declare.

This module adds the parts that the models of requests and responses lack: headers, links and examples.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from app.api._field_examples import FieldExamples
from app.api.fields import IdempotencyKey
from app.api.openapi_examples import BODIES, POLICY_VIOLATION
from app.api.operation import Headers, api

Json = dict[str, Any]
#: The meanings of fields, by schema or by method and path. `*` has the fields that mean the same in all schemas.
Meanings = Mapping[str, Mapping[str, str]]

_JSON = "application/json"
_REFERENCE = re.compile(r"#/components/schemas/(\w+)")

_REQUEST_HEADERS: Mapping[str, Json] = {
    "Idempotency-Key": {
        "description": "Alternative to the field idempotencyKey. Send a new random key for each intended change, and "
        "the same key to retry it. Within 24 hours, a replay of a successful request gets the first response and has "
        "no effect; a replay of a refused request is judged again.",
        "schema": TypeAdapter(IdempotencyKey).json_schema(),
    },
    "Session-Token": {
        "description": "The wallet's session token, from `rotate-token`. Keys with the role agent must send it; other "
        "keys may omit it. It is always checked when sent.",
        "schema": {"type": "string", "examples": ["avs_7mVwGKnUZuVnbH2WuJbSyRhZ2HrYVXpXRvMQqsQqWk3Z"]},
    },
    "If-Match": {
        "description": "The `ETag` of the policy or budget when you read it. If it has changed since, the "
        "request fails with `version_conflict`. Separate several tags with commas; `*` matches any.",
        "schema": {
            "type": "string",
            "pattern": r'^(\*|"[!#-~]+"(, ?"[!#-~]+")*)$',
            "examples": ['"3-5d41402a"'],
        },
    },
}

_RESPONSE_HEADERS: Mapping[str, Json] = {
    "Request-Id": {
        "description": "The request's id, for questions to support. Errors also contain it as `request_id`.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9A-Za-z]+$"},
    },
    "RateLimit-Policy": {
        "description": "Size of the API key's bucket for this kind of request (`q`) at the node that answered, and "
        "seconds in which it refills (`w`). Absent if there is no limit.",
        "schema": {"type": "string", "examples": ['"default";q=200;w=2']},
    },
    "RateLimit": {
        "description": "Requests of weight 1 that the API key can make now (`r`), and seconds until its bucket is full "
        "(`t`).",
        "schema": {"type": "string", "examples": ['"default";r=199;t=2']},
    },
    "Retry-After": {
        "description": "Seconds to wait before you send the request again.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "`Bearer` if the API key was not accepted.",
        "schema": {"type": "string"},
    },
    "ETag": {
        "description": "The version of the policy or budget, and a digest of its name and, for a policy, its hosts "
        "for paid requests. Send it in `If-Match`. Absent while the change waits for a signature.",
        "schema": {"type": "string", "pattern": '^"[!#-~]+"$'},
    },
    "Idempotent-Replayed": {
        "description": "`true` if this is the stored response of an earlier request with the same idempotency key. "
        "`false` if a freeze or pause had been lifted since its first response and was made again.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
}

_SIGN: Json = {
    "name": "sign",
    "in": "query",
    "required": False,
    "description": "With `offline`, a change that the organisation's authority must sign is not sent. The response is "
    "an unsigned transaction on a durable nonce. A change without that signature, such as a freeze or a pause, is "
    "refused with `invalid_request`, because it would take effect immediately.",
    "schema": {"type": "string", "enum": ["offline"]},
}

#: Tags in the order that a newcomer needs them.
_TAGS = (
    *("policies", "wallets", "payments", "transactions", "approvals", "escrows", "x402", "allowances", "budgets"),
    *("recipients", "events", "webhooks", "alerts", "keys", "people", "organization", "audit", "signing"),
)
#: Statuses of responses that may have Retry-After.
_RETRIED = frozenset({"409", "429", "503"})


def document(routes: Sequence[Route], base_url: str, meanings: Meanings) -> Json:
    """Return the document of these routes, as served at `/openapi.json`. ``meanings`` describes the fields."""
    api.app = Starlette(routes=list(routes))
    # A copy, because spectree can generate the document only once per process: generating consumes the nested models.
    found: Json = deepcopy(api.spec)
    found["servers"] = [{"url": base_url}]
    found["tags"].sort(key=lambda tag: _TAGS.index(tag["name"]))
    components = found["components"]
    components["headers"] = deepcopy(dict(_RESPONSE_HEADERS))
    for path, method, operation, headers in _operations(found["paths"], routes):
        _complete(operation, headers, components["schemas"])
        _explain_parameters(operation, meanings.get(f"{method.upper()} {path}", {}))
        if method == "post" and "{" not in path:
            _link(operation, found["paths"], components["schemas"])
        if headers.signable:
            _sign_elsewhere(operation)
    components["schemas"] = _used(found["paths"], components["schemas"])
    for name, schema in components["schemas"].items():
        _explain(schema.get("properties", {}), meanings.get(name, {}), meanings["*"])
        _say_defaults(schema)
    examples = FieldExamples(components["schemas"])
    examples.complete()
    for _path, _method, operation, _headers in _operations(found["paths"], routes):
        for parameter in operation["parameters"]:
            examples.complete_parameter(parameter)
    return found


def _operations(paths: Json, routes: Sequence[Route]) -> Iterator[tuple[str, str, Json, Headers]]:
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            headers: Headers = route.endpoint.__dict__["headers"]
            yield route.path, method.lower(), paths[route.path][method.lower()], headers


def _complete(operation: Json, headers: Headers, schemas: Json) -> None:
    for parameter in operation["parameters"]:
        _without_null(parameter["schema"])
        if parameter["in"] == "path":
            parameter["schema"] = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    body = operation.get("requestBody")
    if body is not None:
        media = body["content"][_JSON]
        schema = _named(media["schema"], schemas)
        body["required"] = "required" in schema or "minProperties" in schema.get("else", ())
        if operation["operationId"] in BODIES:
            media["example"] = deepcopy(BODIES[operation["operationId"]])
    taken = {"Idempotency-Key": headers.repeats, "Session-Token": headers.session, "If-Match": headers.version}
    operation["parameters"] += [
        {"name": name, "in": "header", "required": False, **deepcopy(header)}
        for name, header in _REQUEST_HEADERS.items()
        if taken[name]
    ]
    for status, response in operation["responses"].items():
        if status == "402":
            response["content"][_JSON]["example"] = deepcopy(POLICY_VIOLATION)
        answered = {
            "Request-Id": True,
            "RateLimit-Policy": True,
            "RateLimit": True,
            "Retry-After": status in _RETRIED,
            "WWW-Authenticate": status == "401",
            "ETag": status == "200" and headers.tag,
            "Idempotent-Replayed": status == "200" and headers.repeats,
        }
        response["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"} for name, applies in answered.items() if applies
        }


def _explain_parameters(operation: Json, meanings: Mapping[str, str]) -> None:
    for one in operation["parameters"]:
        if one["in"] == "query":
            _explain({one["name"]: one}, meanings, {})
        elif one["in"] == "path":
            kind = one["name"].removesuffix("_id").replace("_", " ")
            one["description"] = "The object's id." if kind == "id" else f"The {kind}'s id."


def _explain(described: Mapping[str, Json], meanings: Mapping[str, str], everywhere: Mapping[str, str]) -> None:
    for name, schema in described.items():
        meaning = meanings.get(name) or everywhere.get(name)
        if meaning is not None:
            schema["description"] = meaning


def _say_defaults(schema: Json) -> None:
    """Move the defaults of fields into their descriptions.

    Otherwise, generated clients would require or send such fields.
    """
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if default not in (None, [], {}, ""):
            text = default if isinstance(default, str) else json.dumps(default)
            field["description"] = f"{field.get('description', '')} By default `{text}`.".strip()


def _without_null(schema: Json) -> None:
    """Remove `null` from a parameter's schema, where it only means that the parameter is not sent."""
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    if kinds:
        (kind,) = kinds
        schema.update(kind)
    if schema.get("default", "") in (None, []):
        del schema["default"]


def _link(operation: Json, paths: Json, schemas: Json) -> None:
    """Link an operation that creates an object to all operations with the object's id as their only path parameter."""
    answer = operation["responses"]["200"]
    fields = list(_named(answer["content"][_JSON]["schema"], schemas).get("properties", ()))
    # The response of a creation starts with the object's id and repeats it as `id`.
    if "id" not in fields:
        return
    links = {
        other["operationId"]: {
            "operationId": other["operationId"],
            "parameters": {fields[0]: f"$response.body#/{fields[0]}"},
        }
        for path, methods in paths.items()
        if path.count("{") == 1 and f"{{{fields[0]}}}" in path
        for other in methods.values()
    }
    answer["links"] = links


def _sign_elsewhere(operation: Json) -> None:
    """Add to an operation the query parameter for signing elsewhere, and the response with an unsigned transaction."""
    operation["parameters"].append(deepcopy(_SIGN))
    content = operation["responses"]["200"]["content"][_JSON]
    content["schema"] = {"anyOf": [content["schema"], {"$ref": "#/components/schemas/AwaitingSignature"}]}


def _used(paths: Json, schemas: Json) -> Json:
    """Return the schemas that operations refer to. Queries are described as parameters and need no schema."""
    used: set[str] = set()
    found = set(_REFERENCE.findall(json.dumps(paths)))
    while found:
        used |= found
        found = {name for one in found for name in _REFERENCE.findall(json.dumps(schemas[one]))} - used
    return {name: schema for name, schema in schemas.items() if name in used}


def _named(reference: Json, schemas: Json) -> Json:
    schema: Json = schemas[reference["$ref"].rpartition("/")[2]]
    return schema
