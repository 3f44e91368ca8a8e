"""Compares the clients with the service's document: generated files, operations, versions, breaking changes."""

import ast
import importlib.util
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_vault_client import Admin, AsyncAdmin, Vault, _operations
from agent_vault_client._core import Resource

from tests.clients import generate
from tests.support.needs import skip_or_fail
from tests.support.node import generated_clients

_ROOT = Path(__file__).resolve().parents[2]
_MOST_LINES = 400
_UNCHANGED = "Run `just clients` and commit what it writes."


@pytest.fixture(scope="module", name="document")
def _document() -> dict[str, Any]:
    return json.loads(json.dumps(generate.document()))  # type: ignore[no-any-return]


def test_generated_files_match_the_document(document: dict[str, Any]) -> None:
    if importlib.util.find_spec("datamodel_code_generator") is None:
        reason = "needs datamodel-code-generator"
        skip_or_fail(reason)
    generated_clients()

    outdated = [
        str(path)
        for path, text in generate.generated(document).items()
        if (generate.CLIENTS / path).read_text() != text
    ]

    assert outdated == [], _UNCHANGED


def test_each_operation_is_a_method_that_sends_its_request(document: dict[str, Any]) -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.method, request.url.path))
        return httpx.Response(200, json={"data": [], "next_cursor": None})

    admin = Admin("avk_test", transport=httpx.MockTransport(answer))
    for resource in filter(_is_resource, vars(admin).values()):
        for name, method in inspect.getmembers(resource, inspect.ismethod):
            if not name.startswith("_"):
                parameters = inspect.signature(method).parameters.values()
                names = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
                rows = method(*(f"{{{one}}}" for one in names))
                if isinstance(rows, Iterator):
                    assert list(rows) == []

    # Then the methods send all operations of the document
    operations = {
        (method.upper(), path): one["operationId"]
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }
    assert set(sent) == set(operations)
    assert set(_operations.OPERATIONS) == set(operations.values())
    table = (generate.CLIENTS / "typescript/src/operations.ts").read_text().partition("OPERATIONS = [")[2]
    assert set(re.findall(r'"(\w+)"', table)) == set(operations.values())
    # And the methods of the other clients are the same ones
    for client in (AsyncAdmin("avk_test"), Vault("avk_test")):
        assert _methods(client) == _methods(admin)


def _is_resource(one: object) -> bool:
    return isinstance(one, Resource)


def _methods(client: object) -> list[list[str]]:
    return [dir(one) for one in filter(_is_resource, vars(client).values())]


def test_hand_written_part_of_each_client_stays_small() -> None:
    written = {"python": 0, "typescript": 0}
    for path, pattern in ((generate.PYTHON, "*.py"), (generate.TYPESCRIPT, "*.ts")):
        for file in (generate.CLIENTS / path).glob(pattern):
            if file.stem.removeprefix("_") not in {"types", "operations", "catalogue"}:
                written[path.parts[0]] += _code_lines(file)

    assert max(written.values()) <= _MOST_LINES, written


def _code_lines(file: Path) -> int:
    """Return the number of lines with code, without imports, comments and docstrings."""
    text = file.read_text()
    if file.suffix == ".ts":
        text = re.sub(r"/\*.*?\*/|^import .*?;$", "", text, flags=re.DOTALL | re.MULTILINE)
    skipped = set() if file.suffix == ".ts" else _without_code(text)
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] not in "#/"}
    return len(lines - skipped)


def _without_code(text: str) -> set[int]:
    """Return the numbers of the lines with imports and docstrings of Python."""
    found = set()
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, (ast.Import, ast.ImportFrom, ast.Expr)) and not _is_code(one):
            found |= {*range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    return found


def _is_code(one: ast.stmt) -> bool:
    return isinstance(one, ast.Expr) and not isinstance(one.value, ast.Constant)


def test_versions_of_the_clients_are_the_services() -> None:
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    clients = generate.CLIENTS

    assert tomllib.loads((clients / "python/pyproject.toml").read_text())["project"]["version"] == version
    assert json.loads((clients / "typescript/package.json").read_text())["version"] == version
    assert f'VERSION = "{version}"' in (clients / "typescript/src/core.ts").read_text()


def test_breaking_change_of_the_document_is_in_the_changelog(document: dict[str, Any]) -> None:
    released = json.loads((generate.CLIENTS / "released.json").read_text())
    _, _, unreleased = (_ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")
    announced = {
        name for line in unreleased.partition("\n## [")[0].splitlines() if "[BREAKING]" in line for name in _code(line)
    }

    broken = {
        change for change in generate.breaking(released, generate.shape(document)) if not announced & _code(change)
    }

    assert broken == set(), "Name the operation or schema in a line of CHANGELOG.md with [BREAKING]."


def _code(line: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", line))


def _actions(shaped: dict[str, Any]) -> list[str]:
    """Return the values of a query's parameter."""
    parameters = shaped["paths"]["/v1/audit-log"]["get"]["parameters"]
    [schema] = [one["schema"] for one in parameters if one["name"] == "action"]
    return next(one["enum"] for one in (schema, *schema.get("anyOf", [])) if "enum" in one)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda new: new["paths"].pop("/v1/payments"), {"`create_payment` is gone"}),
        (lambda new: new["paths"]["/v1/payments"]["post"].update(operationId="pay"), {"`create_payment` is gone"}),
        (lambda new: new["schemas"]["Payment"]["properties"].pop("tx_id"), {"`Payment` lacks tx_id"}),
        (lambda new: new["schemas"]["Payment"]["required"].remove("tx_id"), {"`Payment` may lack tx_id"}),
        (lambda new: new["schemas"]["CreatePayment"]["required"].append("memo"), {"`CreatePayment` requires memo"}),
        (lambda new: new["schemas"]["CreatePayment"]["properties"].pop("memo"), {"`CreatePayment` lacks memo"}),
        (
            lambda new: new["schemas"]["Payment"]["properties"]["amount"].update(type="number"),
            {"`Payment` changes amount"},
        ),
        (
            lambda new: new["schemas"]["CreateKey"]["properties"]["role"]["enum"].pop(),
            {"`CreateKey` changes role"},
        ),
        (lambda new: _actions(new).pop(), {"`list_audit_log` changes action"}),
        (lambda new: _actions(new).append("late"), set()),
        (lambda new: new["schemas"]["CreatePayment"]["properties"].update(colour={"type": "string"}), set()),
        (lambda new: new["schemas"]["Payment"]["properties"].update(colour={"type": "string"}), set()),
        (lambda new: new["schemas"]["Payment"]["properties"]["status"]["enum"].append("late"), set()),
        (lambda new: new["paths"].update({"/v1/colours": {"get": {"operationId": "list_colours"}}}), set()),
    ],
)
def test_breaking_changes_are_told_from_additions(document: dict[str, Any], change: Any, found: set[str]) -> None:
    released = generate.shape(document)
    changed = json.loads(json.dumps(released))
    change(changed)

    assert generate.breaking(released, changed) == found
