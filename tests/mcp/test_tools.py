"""What a model reads before it calls: every schema and description is complete."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.api.openapi import document
from app.core.errors import CATALOGUE
from app.docs.meanings import meanings
from app.mcp.operations import Operations, Reply
from app.mcp.remedies import remedy
from app.mcp.results import result
from app.mcp.tools import TOOLS, VaultTool
from app.server.application import operations

_OPERATIONS = Operations(document(operations, "http://localhost", meanings()))
#: Codes of the areas that tools reach.
_CODES = {
    code
    for code, kind in CATALOGUE.items()
    if kind.area in {"Requests", "Payments", "x402"} or code.startswith(("session_", "wallet_", "escrow_", "restore_"))
} - {"method_not_allowed"}
#: Operations that are sent by POST and change nothing.
_ASKING = {"simulate_payment", "quote_paid_resource"}
_SECRETS = ("token", "secret", "password", "api_key", "authorization")

_each = pytest.mark.parametrize("tool", TOOLS, ids=[tool.name for tool in TOOLS])


def _properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in schema.get("properties", {}).items():
        yield f"{path}/{name}", one
        yield from _properties(one, f"{path}/{name}")
    for name, one in schema.get("$defs", {}).items():
        yield from _properties(one, f"{path}/{name}")


@_each
def test_every_argument_and_field_is_described(tool: VaultTool) -> None:
    listed = tool.described(_OPERATIONS)

    assert listed.title
    assert (listed.description or "").endswith(".")
    assert listed.output_schema is not None
    for schema in (listed.input_schema, listed.output_schema):
        Draft202012Validator.check_schema(schema)
        for path, one in _properties(schema):
            described = one.get("description", "")
            assert described.endswith("."), path


@pytest.mark.parametrize("code", sorted(_CODES))
def test_remedy_of_an_error_is_one_that_an_agent_has(code: str) -> None:
    advice = _OPERATIONS.in_arguments(remedy(code) or "")

    assert advice.endswith(".")
    assert not re.search(r"\b(GET|POST|PUT|PATCH|DELETE) |agent-vault |\?sign=|[Hh]eader|`[a-z]+[A-Z]\w*`", advice)


@_each
def test_no_argument_is_a_secret(tool: VaultTool) -> None:
    for name in tool.described(_OPERATIONS).input_schema["properties"]:
        assert not any(word in name for word in _SECRETS), name


@_each
def test_annotations_say_what_the_operation_does(tool: VaultTool) -> None:
    listed = tool.described(_OPERATIONS)

    changes = "idempotency_key" in listed.input_schema["properties"]
    assert listed.annotations is not None
    assert listed.annotations.read_only_hint is not changes
    assert listed.annotations.destructive_hint is changes
    assert listed.annotations.idempotent_hint is True


@_each
def test_tool_that_changes_something_requires_a_key_of_its_own(tool: VaultTool) -> None:
    listed = tool.described(_OPERATIONS)
    operation = _OPERATIONS[tool.operation]
    assert tool.changes is (operation.method != "GET" and tool.operation not in _ASKING)
    if not tool.changes:
        return

    key = listed.input_schema["properties"]["idempotency_key"]
    assert "idempotency_key" in listed.input_schema["required"]
    assert (key["type"], key["minLength"]) == ("string", 16)
    # Without a value that a model could copy
    assert not {"example", "examples", "default", "const", "enum"} & key.keys()
    assert not re.search(r"[`\"']|\d|such as|e\.g\.|for example", key["description"])
    assert "\n" not in key["description"]
    for said in ("new random key for each payment", "the same key to retry"):
        assert said in key["description"]
    assert "order-1024" not in listed.model_dump_json()


@pytest.mark.parametrize(
    ("status", "resource", "outcome", "said"),
    [
        ("pending", 402, "pending", "answered 402"),
        ("confirmed", 500, "done", "answered 500"),
        ("failed", 402, "refused", "nothing was paid"),
        ("confirmed", None, "done", "did not answer"),
        ("confirmed", 200, "done", "The call succeeded"),
    ],
)
def test_paid_request_says_what_became_of_payment_and_resource(
    status: str, resource: int | None, outcome: str, said: str
) -> None:
    body = {"payment": {"status": status}, "resource": resource and {"status": resource}}

    content = result(Reply(200, body), body, key="k").structured_content

    assert content is not None
    assert content["outcome"] == outcome
    assert said in content["message"]
