"""The OpenAPI 3.1 document, from the operations that the routes declare."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from app.routes._operation import api

_IDEMPOTENCY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Instead of the field idempotencyKey: a repetition within 24 hours gets the first answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def document(routes: Sequence[Route], base_url: str) -> dict[str, Any]:
    """Return what `/openapi.json` answers for these routes."""
    api.app = Starlette(routes=list(routes))
    # Generated once a process: making it takes the nested models out of what it is made from.
    found: dict[str, Any] = deepcopy(api.spec)
    found["servers"] = [{"url": base_url}]
    schemas = found["components"]["schemas"]
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["parameters"] = [_header_name(one) for one in operation["parameters"]]
            body = operation.get("requestBody")
            if body is None:
                continue
            schema = schemas[body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
            body["required"] = bool(schema.get("required"))
            if "idempotencyKey" in schema["properties"]:
                operation["parameters"].append(_IDEMPOTENCY_HEADER)
    return found


def _header_name(parameter: dict[str, Any]) -> dict[str, Any]:
    if parameter["in"] != "header":
        return parameter
    return {**parameter, "name": parameter["name"].replace("_", "-").title()}
