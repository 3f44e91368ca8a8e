"""The memory of an export does not depend on its number of transactions; 1,000,000 of them with `--full`."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from solders.signature import Signature
from sqlalchemy import Connection, insert

from app.core.identifiers import transaction_id
from app.database import SqliteDatabase
from app.exports.layout import COLUMNS
from app.store.read_tables import transactions
from app.store.schema import create_tables

_ROWS, _MANY_ROWS = 10_000, 1_000_000
_CHUNK = 10_000
_ALLOWED_MB = 50
_ROOT = Path(__file__).resolve().parents[2]

#: Writes the export in a process of its own and prints how much memory and processor time that took.
_CHILD = """
import json, os, sys, time
from pathlib import Path
from app.exports.files import write
from app.core.settings import Settings
from app.database import SqliteDatabase
from app.store.schema import create_tables
from app.store.exports import ExportRecord
from app.transactions.service import shown

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

folder, form = Path(sys.argv[1]), sys.argv[2]
db = SqliteDatabase(folder / "agent-vault.db", create_tables)
export = ExportRecord("exp_1", "org", None, form, None, None, "processing", 0, 0)
before, began = kilobytes("VmRSS"), time.process_time()
settings = Settings()
show = lambda *row: shown(settings, "localnet", *row).model_dump()
path = folder / f"all.{form}"
rows, _ = db.read_now(lambda conn: write(conn, export, 0, 10**9, "program", show, path, lambda: False))
grown = (kilobytes("VmHWM") - before) / 1024
print(json.dumps({"rows": rows, "megabytes": grown, "cpu_seconds": time.process_time() - began}))
"""


def _insert(rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(insert(transactions), rows)


def _made(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {
            "tx_id": transaction_id(os.urandom(32).hex(), 1, 1, "payment"),
            "org": "org",
            "wallet_id": "wal_1111111111111111",
            "type": "payment",
            "recipient": "CJaDRP1Wi69NfUj3XBHvRrUrVe8EYDCkjPGvRuFwA24p",
            "recipient_address": "CJaDRP1Wi69NfUj3XBHvRrUrVe8EYDCkjPGvRuFwA24p",
            "amount": number,
            "status": "confirmed",
            "signature": str(Signature(os.urandom(64))),
            "instruction_index": 1,
            "inner_index": 1,
            "slot": number,
            "policy_id": "pol_moderate",
            "policy_triggered": False,
            "memo": f"Order {number}",
            "attestation_hash": "sha256:" + "ab" * 32,
            "violation": None,
            "error": None,
            "timestamp": 1_780_000_000_000 + number // 3,
        }


@pytest.mark.parametrize("form", ["csv", "json"])
def test_memory_does_not_grow_with_the_number_of_transactions(
    tmp_path: Path, request: pytest.FixtureRequest, form: str
) -> None:
    count = _MANY_ROWS if request.config.getoption("--full") else _ROWS
    db = SqliteDatabase(tmp_path / "agent-vault.db", create_tables)
    for first in range(0, count, _CHUNK):
        some = list(_made(range(first, first + _CHUNK)))
        db.write_now(partial(_insert, some))
    db.close()

    command = [sys.executable, "-c", _CHILD, str(tmp_path), form]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)}
    )

    found = json.loads(done.stdout)
    print(found)
    assert found["rows"] == count
    assert found["megabytes"] < _ALLOWED_MB
    assert _written(tmp_path / f"all.{form}") == count


def _written(path: Path) -> int:
    """How many rows with a place on the chain a file has."""
    with path.open(newline="") as handle:
        if path.suffix == ".csv":
            index = COLUMNS.index("inner_index")
            return sum(row[index] == "1" for row in csv.reader(handle))
        return sum('"inner_index":1' in line for line in handle)
