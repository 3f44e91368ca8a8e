"""Writes transactions into a file, one by one, as CSV or JSON."""

import csv
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any, TextIO

from pydantic_core import to_json
from sqlalchemy import Connection

from app.core.identifiers import transaction_id
from app.core.timestamps import iso_ms, now_ms
from app.exports.layout import COLUMNS, SCOPE_COLUMN, Scope, neutralise
from app.store.exports import ExportRecord, count_rows
from app.store.transactions import TransactionFilter, TransactionRecord, transactions
from app.store.wallets import wallet

Row = dict[str, Any]
Show = Callable[[TransactionRecord], Row]
Stop = Callable[[], bool]
PART = ".part"
"""Ending of the name of a file that is being written."""
_PAGE = 500
_BREATH_EVERY, _BREATH = 100, 0.0005
"""Rows after which the writing thread pauses, and seconds: requests served meanwhile need the interpreter, too."""
_MAX_INDEX = 64
"""More instructions, or inner instructions of one, than fit into a transaction."""


class StoppedError(Exception):
    """The service stops while a file is being written."""


class Places:
    """Finds where in its transaction a row stands, from the row's id, which is made of that."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def find(self, row: TransactionRecord) -> tuple[int, int] | None:
        """Return the indexes of the instruction and the inner instruction; `None` for a row without a signature."""
        if row.tx_signature is None:
            return None
        # Nearly all rows of a type stand in the same place.
        likely = self._last.get(row.type, (0, 0))
        for instruction, inner in chain([likely], product(range(_MAX_INDEX), range(_MAX_INDEX))):
            if transaction_id(row.tx_signature, instruction, inner, row.type) == row.tx_id:
                self._last[row.type] = (instruction, inner)
                return instruction, inner
        return None


def write(  # noqa: PLR0917
    connection: Connection,
    export: ExportRecord,
    generated_at: int,
    slot: int,
    program_id: str,
    show: Show,
    path: Path,
    stop: Stop,
) -> int:
    """Write the export's file, complete under its name or not at all; returns the number of its rows.

    All rows are of one snapshot of the database, which holds what the chain has up to `slot`; what it already holds of
    later slots is left out, for there something may be missing. `generated_at`, in Unix milliseconds, is when that was
    asked for. Raises `StoppedError` soon after `stop` gives true, and OSError.
    """
    rows = count_rows(connection, export, slot)
    scope = Scope(
        export_id=export.export_id,
        org=export.org,
        program_id=program_id,
        wallet_id=export.wallet_id,
        vault=_vault(connection, export),
        from_=None if export.start is None else iso_ms(export.start),
        to=None if export.end is None else iso_ms(export.end),
        slot=slot,
        generated_at=iso_ms(generated_at),
        rows=rows,
    )
    part = path.with_name(path.name + PART)
    with _private(part) as handle:
        _WRITERS[export.format](handle, scope, _rows(connection, export, slot, show, stop))
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(path)
    return rows


def _vault(connection: Connection, export: ExportRecord) -> str | None:
    if export.wallet_id is None:
        return None
    found = wallet(connection, export.org, export.wallet_id, now_ms())
    return None if found is None else found.vault


def _rows(connection: Connection, export: ExportRecord, slot: int, show: Show, stop: Stop) -> Iterator[Row]:
    places = Places()
    for number, row in enumerate(_stored(connection, export, slot), 1):
        if number % _BREATH_EVERY == 0:
            if stop():
                raise StoppedError
            time.sleep(_BREATH)
        instruction, inner = places.find(row) or (None, None)
        yield {
            **show(row),
            "recipient_address": row.recipient_address,
            "instruction_index": instruction,
            "inner_index": inner,
        }


def _stored(connection: Connection, export: ExportRecord, slot: int) -> Iterator[TransactionRecord]:
    wanted = TransactionFilter(wallet_id=export.wallet_id, start=export.start, end=export.end)
    cursor = None
    while True:
        page = transactions(connection, export.org, wanted, limit=_PAGE, cursor=cursor)
        yield from (row for row in page.data if row.on_chain_slot is None or row.on_chain_slot <= slot)
        cursor = page.next_cursor
        if cursor is None:
            return


def _csv(handle: TextIO, scope: Scope, rows: Iterator[Row]) -> None:
    writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
    writer.writerow([*COLUMNS, SCOPE_COLUMN + scope.model_dump_json()])
    for row in rows:
        violation = row.pop("violation") or {}
        row |= {f"violation_{name}": value for name, value in violation.items()}
        writer.writerow([*(_cell(row.get(name)) for name in COLUMNS), ""])


def _cell(value: Any) -> str:
    # By far most cells are texts.
    if isinstance(value, str):
        return neutralise(value)
    if value is None:
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _json(handle: TextIO, scope: Scope, rows: Iterator[Row]) -> None:
    handle.write(f'{{"export": {scope.model_dump_json()},\n"transactions": [')
    handle.writelines((",\n" if number else "\n") + to_json(row).decode() for number, row in enumerate(rows))
    handle.write("\n]}\n")


_WRITERS: Mapping[str, Callable[[TextIO, Scope, Iterator[Row]], None]] = {"csv": _csv, "json": _json}


def _private(path: Path) -> TextIO:
    """Open a new or emptied file that only its owner may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", newline="")
