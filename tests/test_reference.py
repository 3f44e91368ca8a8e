"""Every promise to clients is proved by a test that names it: `@pytest.mark.proves("error wallet_not_found")`.

A promise is an operation or page, a field, an error, an event, a value, or a row of a table in the documents. Fields
are named with their schema or operation: `CreateWallet(agentId, label)`.
"""

import ast
import json
import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

import app.docs
from app.alerts.models import Alerts
from app.api.openapi import document
from app.chain.rules import RULES
from app.core.actors import Role
from app.core.errors import CATALOGUE
from app.core.event_catalogue import EVENTS
from app.core.settings import Settings
from app.core.transaction_types import TransactionStatus, TransactionType
from app.escrows.models import EscrowStatus, ProofType
from app.exports.models import ExportStatus
from app.server.application import operations, routes
from app.store.audit_actions import ACTIONS
from app.wallets.models import WalletStatus
from app.webhooks.models import WebhookStatus
from tests.support.service_world import ServiceWorld

_ROOT = Path(__file__).resolve().parent.parent
_DOCS = Path(app.docs.__file__).parent
_INSTRUCTIONS = [one["name"] for one in json.loads((_ROOT / "idl" / "agent_vault.json").read_text())["instructions"]]
_CODE = re.compile(r"`([^`]+)`")
_FIELDS = re.compile(r"(.+)\((.+)\)")
_STATUSES = {
    "Wallets": WalletStatus,
    "Transactions": TransactionStatus,
    "Escrows": EscrowStatus,
    "Webhooks": WebhookStatus,
    "Exports": ExportStatus,
}
_VALUES = {
    "type": ("Types of transactions", get_args(TransactionType)),
    "rule": ("Rules", RULES),
    "alert": ("Alerts", sorted(set(Alerts.model_fields) - {"updated_at"})),
    "instruction": ("Instructions", _INSTRUCTIONS),
    "proof": ("Proofs", get_args(ProofType)),
    "role": ("Roles", get_args(Role)),
}
#: Fields that many schemas share. The Conventions and Idempotency promise them.
_COMMON = {"idempotencyKey", "has_more", "next_cursor", "data"}


def _tables(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows of a document's tables, each with the heading of its table."""
    heading = ""
    for line, after in pairwise([*path.read_text(encoding="utf-8").splitlines(), ""]):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("| ") and not after.startswith("|-"):
            yield heading, tuple(cell.strip() for cell in line.strip("|").split("|"))


_ROWS = [*_tables(_DOCS / "reference.md")]
_LIMITS = [cells for heading, cells in _tables(_DOCS / "guides" / "limits.md") if heading == "Limits"]


def _in(table: str) -> list[tuple[str, ...]]:
    return [cells for heading, cells in _ROWS if heading == table]


def _promises() -> set[str]:
    """Return the names of all promises."""
    found = {f"{method} {route.path_format}" for route in routes for method in (route.methods or {"GET"}) - {"HEAD"}}
    found |= {f"error {code}" for code in CATALOGUE} | {f"event {kind}" for kind in EVENTS}
    found |= {f"action {action}" for action in ACTIONS}
    found |= {f"{kind} {value}" for kind, (_, values) in _VALUES.items() for value in values}
    found |= {f"preset {_CODE.findall(cells[0])[0]}" for cells in _in("Presets")}
    found |= {f"Limits: {_plain(cells[0])}" for cells in _LIMITS}
    for table in _STATUSES:
        found |= {f"{table}: {_plain(cells[0])} to {_plain(cells[2])}" for cells in _in(table)}
    for section in ("Conventions", "Quickstart", "Authentication", "Idempotency"):
        found |= {f"{section}: {_plain(cells[0])}" for cells in _in(section)}
    described = document(operations, "http://localhost")
    for name, schema in described["components"]["schemas"].items():
        common = set() if name == "AuditLogPage" else _COMMON
        if not name.endswith("Envelope"):
            found |= {f"{name}({field})" for field in schema.get("properties", {}) if field not in common}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            taken = [one["name"] for one in operation["parameters"] if one["in"] == "query" and one["name"] != "sign"]
            found |= {f"{method.upper()} {path}({name})" for name in taken}
    return found


def _plain(cell: str) -> str:
    return cell.replace("`", "").replace('"', "'")


def _proofs() -> Iterator[tuple[str, Path]]:
    """Yield each promise that a test names, with the test's file."""
    for path in sorted((_ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.proves(" in text else ():
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.proves":
                    assert getattr(node, "name", "").startswith("test_"), f"{path}: {ast.unparse(call)}"
                    for argument in call.args:
                        name = ast.literal_eval(argument)
                        fields = _FIELDS.fullmatch(name)
                        names = [f"{fields[1]}({field})" for field in fields[2].split(", ")] if fields else [name]
                        yield from ((one, path) for one in names)


def test_every_promise_has_a_test_and_every_test_proves_known_ones() -> None:
    promised, proved = _promises(), {name for name, _ in _proofs()}

    assert len(promised) > 1_000
    assert sorted(promised - proved) == []
    assert sorted(proved - promised) == []


def test_proof_of_an_error_expects_its_code() -> None:
    for name, path in _proofs():
        kind, _, code = name.partition(" ")
        if kind == "error":
            assert f'"{code}"' in path.read_text(), f"{path} does not speak of {code}"


@pytest.mark.parametrize("table", _STATUSES)
def test_every_status_is_reached_by_an_arrow_and_no_arrow_leads_elsewhere(table: str) -> None:
    known, rows = set(get_args(_STATUSES[table])), _in(table)

    for cells in rows:
        assert cells[0] in {"new", "any"} or set(_CODE.findall(cells[0])) <= known, cells[0]
    assert {name for cells in rows for name in _CODE.findall(cells[2])} == known


@pytest.mark.parametrize("kind", _VALUES)
def test_every_value_has_its_row(kind: str) -> None:
    table, values = _VALUES[kind]

    assert sorted(name for cells in _in(table) for name in _CODE.findall(cells[0])) == sorted(values)


def test_limits_that_can_be_set_are_the_defaults_of_their_settings() -> None:
    for cells in _LIMITS:
        numbers = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", cells[1])}
        for name in _CODE.findall(cells[2]):
            assert float(Settings.model_fields[name].default) in numbers, name


@pytest.mark.proves("GET /docs/{path}")
async def test_pages_show_every_row_endpoint_action_error_and_event(world: ServiceWorld) -> None:
    assert 'href="/docs/reference"' in (await world.client.get("/docs")).text
    page = await world.client.get("/docs/reference")
    shown = {name: _text((await world.client.get(f"/docs/{name}")).text) for name in ("reference", "errors", "events")}
    limits = _text((await world.client.get("/docs/guides/limits")).text)

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for text, rows in ((shown["reference"], [cells for _, cells in _ROWS]), (limits, _LIMITS)):
        assert [cell for cells in rows for cell in cells if _plain_text(cell) not in text] == []
    listed = "".join([(await world.client.get(path)).text for path in ("/docs/api", "/docs/api/service")])
    for route in routes:
        assert route.path_format in listed, route.path
    assert [name for name in ACTIONS if name not in shown["reference"]] == []
    assert [name for name in CATALOGUE if name not in shown["errors"]] == []
    for kind in EVENTS.values():
        assert all(name in shown["events"] for name in (kind.type, *kind.fields, *kind.optional)), kind.type


def _plain_text(cell: str) -> str:
    return " ".join(cell.replace("`", "").split())


def _text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
