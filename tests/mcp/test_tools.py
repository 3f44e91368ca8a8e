"""What a model reads before it calls: every schema and description is complete."""

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from app.approvals.models import ApprovalStatus
from app.core.errors import CATALOGUE
from app.mcp.operations import BadArgumentError, Operations, Reply
from app.mcp.remedies import remedy
from app.mcp.results import SCHEMA, result
from app.mcp.tools import TOOLS, VaultTool
from app.server.application import openapi

_DOCUMENT = openapi("http://localhost")
_OPERATIONS = Operations(_DOCUMENT)
#: Codes of the areas that tools reach.
_CODES = {
    code
    for code, kind in CATALOGUE.items()
    if kind.area in {"Requests", "Payments", "x402"} or code.startswith(("session_", "wallet_", "escrow_", "restore_"))
} - {"method_not_allowed"}
#: Operations that are sent by POST and change nothing.
_ASKING = {"simulate_payment", "quote_paid_request"}
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
            assert _OPERATIONS.in_arguments(described) == described, path


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
        ("confirmed", None, "done", "gave no response"),
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


@pytest.mark.parametrize(
    ("operation", "arguments", "said"),
    [
        ("get_transaction", {"tx_id": "tx_\ud800"}, "no object with this id"),
        ("get_transaction", {"tx_id": "tx/1"}, "no object with this id"),
        ("list_transactions", {"cursor": "\ud800"}, "not Unicode"),
        ("create_payment", {"amount": float("nan")}, "not finite"),
    ],
)
def test_argument_that_no_request_can_carry_is_named(operation: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgumentError, match=said):
        _OPERATIONS[operation].request(arguments)


@pytest.mark.parametrize("status", get_args(ApprovalStatus))
def test_every_status_of_an_approval_has_an_outcome(status: str) -> None:
    content = result(Reply(200, {"status": status, "decided_at": None}), {}, key=None).structured_content

    assert content is not None
    assert content["outcome"] == {"pending": "pending", "approved": "done", "used": "done"}.get(status, "refused")


def test_quote_that_the_vault_cannot_settle_is_refused() -> None:
    quoted = {"allowed": False, "error": "x402_wallet_not_supported", "rules": [], "warnings": ["accepts[0]: dear."]}

    content = result(Reply(200, quoted), quoted, key=None).structured_content

    assert content is not None
    assert (content["outcome"], content["data"]) == ("refused", quoted)
    assert "accepts[0]: dear." in content["message"]
    assert "`allow_allowances`" in _OPERATIONS.in_arguments(content["message"])


def test_list_of_tools_fits_40_kilobytes() -> None:
    listed = [tool.described(_OPERATIONS).model_dump(by_alias=True, exclude_none=True) for tool in TOOLS]

    answer = {"jsonrpc": "2.0", "id": 1, "result": {"tools": listed}}
    assert len(json.dumps(answer, separators=(",", ":"))) <= 40_000


@_each
def test_output_schema_describes_the_envelope_alone(tool: VaultTool) -> None:
    schema = tool.described(_OPERATIONS).output_schema

    assert schema == SCHEMA
    content = result(Reply(200, {}), {}, key=None).structured_content
    assert content is not None
    assert content.keys() == schema["properties"].keys() == set(schema["required"])
    assert "properties" not in schema["properties"]["data"]


def _is_strict(schema: Any) -> bool:
    """Return True if a converter to OpenAI's strict mode accepts a schema: no object has names of the caller's choice.

    Source of the rule: `ensure_strict_json_schema` of openai-agents.
    """
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    closed = schema.get("type") != "object" or schema.get("additionalProperties", False) is False
    return closed and all(map(_is_strict, schema.values()))


@_each
def test_schema_of_arguments_can_be_converted_to_strict_mode(tool: VaultTool) -> None:
    schema = tool.described(_OPERATIONS).input_schema

    assert _is_strict(schema)
    assert not {"$ref", "default", "oneOf", "allOf"} & _keywords(schema)


def _keywords(schema: Any) -> set[str]:
    """Return the names of all members of a schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(_keywords, schema))
    if not isinstance(schema, dict):
        return set()
    return {*schema}.union(*map(_keywords, schema.values()))


@_each
def test_arguments_are_required_or_may_be_null(tool: VaultTool) -> None:
    schema = tool.described(_OPERATIONS).input_schema

    for name, one in schema["properties"].items():
        nullable = Draft202012Validator(one).is_valid(None)
        assert nullable is (name not in schema["required"]), name


@_each
def test_no_example_sets_an_argument(tool: VaultTool) -> None:
    assert not {"example", "examples"} & _keywords(tool.described(_OPERATIONS).input_schema)


def test_no_example_of_the_api_confirms_a_check() -> None:
    for schema in _DOCUMENT["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            for example in (*field.get("examples", ()), *schema.get("examples", ())):
                for check in ("afterRestore", "allowUnverifiedRecipient"):
                    assert not (name == check and example), name
                    assert not (isinstance(example, dict) and example.get(check)), name
