"""The OpenAPI 3.1 document, built from the operations that the routes declare.

The models contain the description and the example of each field. This module adds headers, links and body examples.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.routing import Route

from app.api.declared import Declared
from app.api.error_bodies import ErrorEnvelope, PolicyViolationEnvelope
from app.api.fields import IdempotencyKey, Query
from app.api.signing import AwaitingSignature
from app.core.http_api import VERSION

Json = dict[str, Any]

_JSON = "application/json"
_SCHEMAS = "#/components/schemas/"
_REFERENCE = re.compile(_SCHEMAS + r"(\w+)")
_PARAMETER = re.compile(r"{(\w+)}")
_ABOUT = (
    "Agents pay USDC from vaults. The on-chain program enforces the policy of each vault. "
    "Request fields are accepted in camelCase and in snake_case; responses are in snake_case. "
    "Amounts are decimal strings. Times are ISO 8601 in UTC."
)

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
    "Service-Time": {
        "description": "The service's time. Idempotency keys expire by it. On an embedded chain, the test clock moves "
        "it.",
        "required": True,
        "schema": {"type": "string", "format": "date-time"},
    },
    "RateLimit-Policy": {
        "description": "Size of the API key's bucket for this kind of request (`q`) on the node that answered, and "
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
        "`false` if the freeze or pause had been lifted since the first response, so that the request made it again.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
}

_SIGN: Json = {
    "name": "sign",
    "in": "query",
    "required": False,
    "description": "With `offline`, a change that the organisation's authority must sign is not sent. The response is "
    "an unsigned transaction on a durable nonce. A change that needs no such signature, such as a freeze, is "
    "refused with `invalid_request`, because it would take effect immediately.",
    "schema": {"type": "string", "enum": ["offline"], "examples": ["offline"]},
}

_TAGS: Mapping[str, str] = {
    "policies": "A policy is a set of rules for the wallets that it is attached to. The program enforces it.",
    "wallets": "A wallet is an agent's vault on the chain, with its policy, its balance and its session.",
    "payments": "A payment moves USDC from a wallet to an address, a domain or another wallet.",
    "transactions": "Transactions are all movements of money, including refused ones. Exports contain them as files.",
    "insights": "Insights are sums of payments and refusals by day, wallet, tag and other groups.",
    "approvals": "An approval is an operator's or admin's consent to one payment, escrow or allowance above a policy's "
    "threshold.",
    "escrows": "An escrow locks money for another agent's work until a proof, a decision or its deadline.",
    "paid-requests": "A paid request gets a resource that answers HTTP 402 and pays for it, by x402 or MPP.",
    "x402": "The older paths of paid requests. New code uses `/v1/paid-requests`.",
    "allowances": "An allowance sets money aside for a delegate that pays by plain token transfers.",
    "budgets": "A budget limits several wallets together, in addition to their policies. It can be part of another.",
    "recipients": "A registration gives an address a category and a domain that policies can name.",
    "events": "An event records a change of an object. Webhooks receive the same events.",
    "webhooks": "A webhook is an address of your server that receives events, signed and in order.",
    "alerts": "Alerts watch wallets and send events or e-mails when a threshold is reached.",
    "keys": "An API key authenticates a client and has one role. The request log shows the use of keys.",
    "people": "People sign in to the dashboard with a passkey or a company account.",
    "organization": "The organisation owns the wallets and the reserve. Pausing it stops all payments.",
    "audit": "The audit log records each change with its caller, in a chain of hashes.",
    "signing": "Unsigned transactions of an organisation that keeps its authority key elsewhere.",
    "testing": "The test clock of the embedded chain moves time, so that limits and deadlines can be tried.",
}
"""The object of each tag, in the order that a newcomer needs the tags."""
#: Statuses of responses that may have Retry-After.
_RETRIED = frozenset({409, 429, 503})


def document(routes: Sequence[Route], base_url: str) -> Json:
    """Return the document of these routes, as served at `/openapi.json`."""
    operations = [
        (route.path, method.lower(), Declared.of(route.endpoint))
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    ]
    schemas = _schemas([declared for _, _, declared in operations])
    paths: Json = {}
    for path, method, declared in operations:
        paths.setdefault(path, {})[method] = _operation(path, declared, schemas)
    for path, method, _ in operations:
        if method == "post" and "{" not in path:
            _link(paths[path][method], paths, schemas)
    schemas = _used(paths, schemas)
    for field in _fields(schemas):
        _say_default(field)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Agent Vault Payment Service", "version": VERSION, "description": _ABOUT},
        "servers": [{"url": base_url}],
        "tags": [{"name": tag, "description": about} for tag, about in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": deepcopy(dict(_RESPONSE_HEADERS)),
            "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer", "bearerFormat": "API key"}},
        },
        "security": [{"api_key": []}],
    }


def _schemas(operations: Sequence[Declared]) -> Json:
    """Return the schemas of all bodies, queries and responses, by the names of their models."""
    modes: dict[type[BaseModel], JsonSchemaMode] = {one.answer: "serialization" for one in operations}
    modes |= dict.fromkeys((AwaitingSignature, ErrorEnvelope, PolicyViolationEnvelope), "serialization")
    modes |= {one.model: "validation" for one in operations if one.model is not None}
    found: Json = models_json_schema(list(modes.items()), ref_template=_SCHEMAS + "{model}")[1]["$defs"]
    for field in _fields(found):
        field["description"] = " ".join(field.get("description", "").split())
        if shown := _examples(field, found):
            field["examples"] = shown
    return found


def _fields(schemas: Json) -> Iterator[Json]:
    return (field for schema in schemas.values() for field in schema.get("properties", {}).values())


def _examples(schema: Json, schemas: Json) -> list[Any]:
    """Return a list with the schema's example: its own, or one made from its type.

    The list is empty without an example.
    """
    if "examples" in schema:
        return list(schema["examples"])
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"][:1])
    if "$ref" in schema:
        return _examples(schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas)
    if "properties" in schema:
        fields = {name: _examples(field, schemas) for name, field in schema["properties"].items()}
        return [{name: shown[0] for name, shown in fields.items() if shown}]
    if "anyOf" in schema:
        return next((shown for kind in schema["anyOf"] if (shown := _examples(kind, schemas))), [])
    if schema.get("type") == "array":
        return [shown] if (shown := _examples(schema["items"], schemas)) else []
    return [True] if schema.get("type") == "boolean" else []


def _operation(path: str, declared: Declared, schemas: Json) -> Json:
    summary, *rest = (" ".join(part.split()) for part in declared.meaning.split("\n\n"))
    operation: Json = {
        "summary": summary,
        "operationId": declared.name,
        "description": "\n\n".join(rest),
        "tags": [declared.tag],
        "x-roles": sorted(declared.roles),
        "x-weight": declared.weight,
        "parameters": list(_parameters(path, declared, schemas)),
        "responses": {"200": _response(200, "Success.", declared.answer, declared)},
    }
    for status, codes in sorted(declared.errors.items()):
        envelope = PolicyViolationEnvelope if codes == ["policy_violation"] else ErrorEnvelope
        operation["responses"][str(status)] = _response(status, ", ".join(codes), envelope, declared)
    if 402 in declared.errors:
        refused = operation["responses"]["402"]["content"][_JSON]
        refused["example"] = _examples(refused["schema"], schemas)[0]
    if declared.signable:
        content = operation["responses"]["200"]["content"][_JSON]
        content["schema"] = {"anyOf": [content["schema"], _content(AwaitingSignature)[_JSON]["schema"]]}
    if declared.model is not None and not issubclass(declared.model, Query):
        schema = schemas[declared.model.__name__]
        required = "required" in schema or "minProperties" in schema.get("else", ())
        operation["requestBody"] = {"content": _content(declared.model), "required": required}
        if shown := _body(declared.model, schema["properties"]):
            operation["requestBody"]["content"][_JSON]["example"] = shown
    return operation


def _content(model: type[BaseModel]) -> Json:
    return {_JSON: {"schema": {"$ref": _SCHEMAS + model.__name__}}}


def _body(model: type[BaseModel], properties: Json) -> Json:
    """Return the example of a body: its required fields, and optional fields with their own example."""
    return {
        name: properties[name]["examples"][0]
        for name, field in ((field.alias or name, field) for name, field in model.model_fields.items())
        if field.is_required() or (field.examples and field.examples[0] != field.default)
    }


def _parameters(path: str, declared: Declared, schemas: Json) -> Iterator[Json]:
    for name in _PARAMETER.findall(path):
        kind = name.removesuffix("_id").replace("_", " ")
        shown = next(
            one["properties"][name]["examples"] for one in schemas.values() if name in one.get("properties", ())
        )
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": "The object's id." if kind == "id" else f"The {kind}'s id.",
            "schema": {"type": "string", "minLength": 1, "pattern": "^[^/]+$", "examples": shown},
        }
    if declared.model is not None and issubclass(declared.model, Query):
        schema = deepcopy(schemas[declared.model.__name__])
        for name, field in schema["properties"].items():
            _without_null(field)
            described = {"description": field.pop("description"), "schema": field}
            yield {"name": name, "in": "query", "required": name in schema.get("required", ()), **described}
    taken = {"Idempotency-Key": declared.repeats, "Session-Token": declared.session, "If-Match": declared.version}
    for name, header in _REQUEST_HEADERS.items():
        if taken[name]:
            yield {"name": name, "in": "header", "required": False, **deepcopy(header)}
    if declared.signable:
        yield deepcopy(_SIGN)


def _response(status: int, description: str, model: type[BaseModel], declared: Declared) -> Json:
    answered = {
        "Request-Id": True,
        "Service-Time": True,
        "RateLimit-Policy": True,
        "RateLimit": True,
        "Retry-After": status in _RETRIED,
        "WWW-Authenticate": status == 401,
        "ETag": status == 200 and declared.tagged,
        "Idempotent-Replayed": status == 200 and declared.repeats,
    }
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name, applies in answered.items() if applies}
    return {"description": description, "content": _content(model), "headers": headers}


def _say_default(field: Json) -> None:
    """Move a field's default into its description. Otherwise, generated clients would require or send the field."""
    default = field.pop("default", None)
    if default not in (None, [], {}, ""):
        text = default if isinstance(default, str) else json.dumps(default)
        field["description"] += f" By default `{text}`."


def _without_null(schema: Json) -> None:
    """Remove `null` from a query parameter's schema. There it only means that the parameter is not sent."""
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    if kinds:
        (kind,) = kinds
        schema.update(kind)
    if schema.get("default", "") in (None, []):
        del schema["default"]


def _link(operation: Json, paths: Json, schemas: Json) -> None:
    """Link an operation that creates an object to each operation with the object's id as its only path parameter."""
    answer = operation["responses"]["200"]
    answered = answer["content"][_JSON]["schema"]
    reference = answered["anyOf"][0] if "anyOf" in answered else answered
    fields = list(schemas[reference["$ref"].removeprefix(_SCHEMAS)].get("properties", ()))
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


def _used(paths: Json, schemas: Json) -> Json:
    """Return the schemas that operations refer to. Queries are described as parameters and need no schema."""
    used: set[str] = set()
    found = set(_REFERENCE.findall(json.dumps(paths)))
    while found:
        used |= found
        found = {name for one in found for name in _REFERENCE.findall(json.dumps(schemas[one]))} - used
    return {name: schema for name, schema in schemas.items() if name in used}
