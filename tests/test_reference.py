"""The reference under /docs: a row for everything that is served, and for every row a test that exists."""

import ast
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, get_args

import pytest

import app.docs
from app.access.keyring import Role
from app.alerts.models import Alerts
from app.chain.rules import RULES
from app.core.errors import CATALOGUE
from app.core.settings import Settings
from app.core.transaction_types import TransactionStatus, TransactionType
from app.escrows.models import EscrowStatus, ProofType
from app.events.catalogue import EVENTS
from app.exports.models import ExportStatus
from app.server.application import routes
from app.store.audit_actions import Action
from app.wallets.models import WalletStatus
from app.webhooks.models import WebhookStatus
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parent.parent
_TEXT = (Path(app.docs.__file__).parent / "reference.md").read_text(encoding="utf-8")
_INSTRUCTIONS = [one["name"] for one in json.loads((_ROOT / "idl" / "agent_vault.json").read_text())["instructions"]]
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of a table: where it stands, and its cells."""

    section: str
    table: str
    cells: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """What the first cell names."""
        return _CODE.findall(self.cells[0])

    @property
    def tests(self) -> list[tuple[str, str]]:
        """File and function of each test in the last cell."""
        found = [name.partition("::") for name in _CODE.findall(self.cells[-1])]
        return [(file, function) for file, _, function in found]


def _read() -> Iterator[Row]:
    section = table = ""
    for line in _TEXT.splitlines():
        if line.startswith("## "):
            section = table = line.removeprefix("## ")
        elif line.startswith("### "):
            table = line.removeprefix("### ")
        elif line.startswith("| "):
            cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
            if cells[-1] != "Test":
                yield Row(section, table, cells)


_ROWS = list(_read())
_ANSWERS = sorted({row.table for row in _ROWS if row.section == "Fields"})
_REQUESTS = sorted({row.table for row in _ROWS if row.section == "Requests"})


def _in(section: str, table: str | None = None) -> list[Row]:
    rows = [row for row in _ROWS if row.section == section and row.table == (table or section)]
    assert rows, (section, table)
    return rows


def _named(rows: Collection[Row]) -> list[str]:
    return [name for row in rows for name in row.names]


@cache
def _functions(file: str) -> frozenset[str]:
    """The names of the tests in a file."""
    path = _ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


async def test_every_row_names_tests_that_exist() -> None:
    assert len(_ROWS) > 250
    for row in _ROWS:
        assert row.tests, f"no test: {row.cells[0]}"
        for file, function in row.tests:
            assert function.startswith("test_"), row.cells[-1]
            assert function in _functions(file), f"there is no {file}::{function}"


async def test_every_route_has_its_row_and_every_row_its_route() -> None:
    served = {f"{method} {route.path}" for route in routes for method in (route.methods or {"GET"}) - {"HEAD"}}

    found = _named(_in("Endpoints"))

    assert sorted(found) == sorted(served)


async def test_every_error_has_its_row_status_and_a_test_that_expects_it() -> None:
    rows = _in("Errors")

    assert sorted((*row.names, int(row.cells[1])) for row in rows) == sorted(
        (kind.code, kind.status) for kind in CATALOGUE.values()
    )
    for row in rows:
        [code] = row.names
        for file, _ in row.tests:
            assert f'"{code}"' in (_ROOT / file).read_text(), f"{file} does not speak of {code}"


async def test_every_event_has_its_row_with_its_severity_and_fields() -> None:
    rows = {row.names[0]: row for row in _in("Events")}

    assert set(rows) == set(EVENTS)
    for name, row in rows.items():
        kind = EVENTS[name]
        assert row.cells[1] == (f"{kind.severity}, {kind.exception}" if kind.exception else kind.severity), name
        assert set(_CODE.findall(row.cells[2])) == {*kind.fields, *kind.optional}, name


@pytest.mark.parametrize(
    ("table", "statuses"),
    [
        ("Wallets", WalletStatus),
        ("Transactions", TransactionStatus),
        ("Escrows", EscrowStatus),
        ("Webhooks", WebhookStatus),
        ("Exports", ExportStatus),
    ],
)
async def test_every_status_is_reached_by_an_arrow_and_no_arrow_leads_elsewhere(table: str, statuses: Any) -> None:
    known, rows = set(get_args(statuses)), _in("Statuses", table)

    for row in rows:
        assert row.cells[0] in {"new", "any"} or set(row.names) <= known, row.cells[0]
    assert {name for row in rows for name in _CODE.findall(row.cells[2])} == known


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("Types of transactions", get_args(TransactionType)),
        ("Rules", RULES),
        ("Alerts", sorted(set(Alerts.model_fields) - {"updated_at"})),
        ("Instructions", _INSTRUCTIONS),
        ("Proofs", get_args(ProofType)),
        ("Roles", get_args(Role)),
        ("Actions", get_args(Action)),
    ],
)
async def test_every_value_has_its_row(table: str, values: Collection[str]) -> None:
    assert sorted(_named(_in("Values", table))) == sorted(values)


@pytest.mark.parametrize("name", _ANSWERS)
async def test_every_field_of_an_answer_has_its_row(world: ServiceWorld, name: str) -> None:
    document = (await world.client.get("/openapi.json")).json()

    fields = document["components"]["schemas"][name]["properties"]

    assert sorted(_named(_in("Fields", name))) == sorted(fields)


@pytest.mark.parametrize("name", _REQUESTS)
async def test_every_request_field_has_its_row_and_says_if_it_is_required(world: ServiceWorld, name: str) -> None:
    document = (await world.client.get("/openapi.json")).json()
    method, _, path = name.partition(" ")
    if path:
        parameters = document["paths"][path][method.lower()]["parameters"]
        expected = {one["name"]: one["required"] for one in parameters if one["in"] == "query"}
    else:
        schema = document["components"]["schemas"][name]
        expected = {field: field in schema.get("required", ()) for field in schema["properties"]}
        expected.pop("idempotencyKey", None)

    rows = _in("Requests", name)

    assert sorted(_named(rows)) == sorted(expected)
    for row in rows:
        assert {expected[field] for field in row.names} == {{"yes": True, "no": False}[row.cells[1]]}, row.cells[0]


async def test_limits_that_can_be_set_are_the_defaults_of_their_settings() -> None:
    for row in _in("Limits"):
        numbers = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", row.cells[1])}
        for name in _CODE.findall(row.cells[2]):
            assert float(Settings.model_fields[name].default) in numbers, name


async def test_page_shows_every_row_and_is_found(world: ServiceWorld) -> None:
    assert 'href="/docs/reference"' in (await world.client.get("/docs")).text
    page = await world.client.get("/docs/reference")

    text = unescape(re.sub(r"<[^>]+>", "", page.text))
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for row in _ROWS:
        for cell in row.cells:
            assert cell.replace("`", "") in text, cell
