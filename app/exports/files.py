"""Writes transactions to a CSV or JSON file, one row at a time."""

import csv
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from pydantic_core import to_json
from sqlalchemy import Connection

from app.core.timestamps import iso_ms
from app.core.transaction_types import MOVEMENTS
from app.exports import accounting
from app.exports.layout import COLUMNS, SCOPE_COLUMN, Scope, cells, neutralise
from app.store.accounting import names_of
from app.store.exports import ExportRecord, count_rows
from app.store.read_tables import TransactionRecord
from app.store.transactions import TransactionFilter, transactions
from app.store.wallets import vault_of
from app.store.x402 import IssuedPayment, issued_payments_of

Row = dict[str, Any]
Show = Callable[[TransactionRecord, IssuedPayment | None], Row]
Stop = Callable[[], bool]
PART = ".part"
"""Suffix of a file that is being written."""
_PAGE = 500
_ROWS_PER_PAUSE, _PAUSE = 100, 0.0005
"""Number of rows between two pauses of the writing thread, and the pause in seconds. Requests run in the pauses."""


class StoppedError(Exception):
    """The service is stopping while a file is being written."""


def write(  # noqa: PLR0917
    connection: Connection,
    export: ExportRecord,
    generated_at: int,
    slot: int,
    program_id: str,
    show: Show,
    path: Path,
    stop: Stop,
) -> tuple[int, str | None]:
    """Write an export's file. Return the number of rows, and the manifest of an accounting file.

    The file appears under its name only when complete.

    All rows come from one snapshot of the database. Rows of slots after `slot` are left out, because the snapshot may
    lack some of them. `generated_at` is the Unix millisecond when the read models began to catch up with `slot`.
    Raises OSError, and `StoppedError` soon after `stop` returns true.
    """
    rows = count_rows(connection, export, slot)
    scope = Scope(
        export_id=export.export_id,
        org=export.org,
        program_id=program_id,
        wallet_id=export.wallet_id,
        vault=None if export.wallet_id is None else vault_of(connection, export.wallet_id),
        from_=None if export.start is None else iso_ms(export.start),
        to=None if export.end is None else iso_ms(export.end),
        slot=slot,
        generated_at=iso_ms(generated_at),
        rows=rows,
    )
    part = path.with_name(path.name + PART)
    with private(part) as handle:
        handle.write("\ufeff" if export.bom else "")
        write_rows = {"csv": _csv, "json": _json, "accounting": _accounting}[export.format]
        write_rows(handle, scope, _rows(connection, export, slot, show, stop))
        handle.flush()
        os.fsync(handle.fileno())
    manifest = None
    if export.format == "accounting":
        with part.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        manifest = accounting.AccountingManifest(export=scope, sha256=digest).model_dump_json()
    part.replace(path)
    return rows, manifest


def _rows(connection: Connection, export: ExportRecord, slot: int, show: Show, stop: Stop) -> Iterator[Row]:
    for number, (row, issued, names) in enumerate(_stored(connection, export, slot), 1):
        if number % _ROWS_PER_PAUSE == 0:
            if stop():
                raise StoppedError
            time.sleep(_PAUSE)
        yield {
            **show(row, issued),
            "recipient_address": row.recipient_address,
            "instruction_index": row.instruction_index,
            "inner_index": row.inner_index,
            **names,
        }


def _stored(
    connection: Connection, export: ExportRecord, slot: int
) -> Iterator[tuple[TransactionRecord, IssuedPayment | None, Mapping[str, str]]]:
    """Yield the rows in the file, each with its issued payment and, for an accounting file, its names and labels."""
    movements = export.format == "accounting"
    wanted = TransactionFilter(wallet_id=export.wallet_id, start=export.start, end=export.end)
    wanted = replace(wanted, status="confirmed") if movements else wanted
    cursor = None
    while True:
        page = transactions(connection, export.org, wanted, limit=_PAGE, cursor=cursor)
        issued = {one.tx_id: one for one in issued_payments_of(connection, [row.tx_id for row in page.data])}
        names = names_of(connection, export.org, page.data) if movements else {}
        for row in page.data:
            if (row.slot is None or row.slot <= slot) and (not movements or row.type in MOVEMENTS):
                yield row, issued.get(row.tx_id), names.get(row.tx_id, {})
        cursor = page.next_cursor
        if cursor is None:
            return


def _csv(handle: TextIO, scope: Scope, rows: Iterator[Row]) -> None:
    writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
    writer.writerow([*COLUMNS, SCOPE_COLUMN + scope.model_dump_json()])
    writer.writerows([*map(neutralise, cells(row).values()), ""] for row in rows)


def _accounting(handle: TextIO, _scope: Scope, rows: Iterator[Row]) -> None:
    writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
    writer.writerow(accounting.COLUMNS)
    writer.writerows(map(neutralise, accounting.cells(row)) for row in rows)


def _json(handle: TextIO, scope: Scope, rows: Iterator[Row]) -> None:
    handle.write(f'{{"export": {scope.model_dump_json()},\n"transactions": [')
    handle.writelines((",\n" if number else "\n") + to_json(row).decode() for number, row in enumerate(rows))
    handle.write("\n]}\n")


def private(path: Path) -> TextIO:
    """Create or empty a file that only its owner can read, and open it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", newline="")
