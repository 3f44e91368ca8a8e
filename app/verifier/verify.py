"""Compares an export with the chain, in both directions."""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from solders.pubkey import Pubkey

from app.chain.transport import Transport
from app.core.identifiers import wallet_id
from app.core.timestamps import parse_iso_ms
from app.exports.layout import Scope
from app.verifier.document import Row, UnreadableError, opened
from app.verifier.history import History, IncompleteError
from app.verifier.rows import (
    TOLERANCE,
    ExpectedRow,
    differences,
    differences_before,
    is_name,
    rows_of,
    shows_off_chain_policy,
)
from idl.codec import load

_OFF_CHAIN = frozenset({"blocked", "failed", "pending"})
"""Statuses of rows that were not known to be on the chain when the export was made."""
_CLAIMED = ("memos", "names of recipients", "protocols of paid requests", "policies")
"""Data in rows that the chain does not have."""
_TEMPORARY = ""
"""Name that makes SQLite create a temporary file, use it only when memory is full, and remove it."""


@dataclass(slots=True)
class VerificationReport:
    """The result of a verification.

    `problems` are the differences between export and chain, including missing and added rows. `off_chain` are rows that
    the chain does not have. `landed` are rows that landed after the export and are not confirmed in it. `unsure` are
    rows of the chain that the export may rightly lack, because they are near an end of its range or in its last slot.
    `later` counts rows of the chain after the last slot. `unverified` counts the data in verified rows that only the
    service vouches for.
    """

    scope: Scope
    verified: int = 0
    problems: list[str] = field(default_factory=list)
    off_chain: list[str] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    later: int = 0
    unverified: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CLAIMED, 0))

    def lines(self) -> Iterator[str]:
        """Yield the report as text: the file's claims, then the facts."""
        scope = self.scope
        yield "Claims of the file, which nothing verifies. Compare its scope with your request:"
        yield f"  export        {scope.export_id}, made {scope.generated_at}"
        yield f"  organisation  {scope.org}"
        yield f"  program       {scope.program_id}"
        yield f"  wallet        {scope.wallet_id or 'all'}"
        yield f"  from          {scope.from_ or 'the beginning'}"
        yield f"  to            {scope.to or 'the end'}, up to slot {scope.slot}"
        yield from (f"OFF-CHAIN {row}" for row in self.off_chain)
        yield f"{_count(len(self.off_chain), 'row')} off-chain. Nothing in them is verified."
        unverified = ", ".join(f"{name} ({count})" for name, count in self.unverified.items())
        yield f"Not on the chain, and so not verified even in verified rows: {unverified}; explorer links; the order of"
        yield f"  rows; timestamps, except that they are within {TOLERANCE} seconds of their blocks; the names and"
        yield "  labels of an accounting file; that the organisation's mint is USDC."
        yield "Facts, provided that the node is honest:"
        yield from (f"DIFFERENT {problem}" for problem in self.problems)
        yield from (f"LANDED    {row}" for row in self.landed)
        yield from (f"UNSURE    {row}" for row in self.unsure)
        if self.landed:
            landed = _count(len(self.landed), "row")
            yield f"{landed} landed after the export. Only wallet, type, amount and currency are verified, and the"
            yield "  recipient, except in fundings and withdrawals."
        if self.later:
            yield f"{_count(self.later, 'further row')} of the chain landed after slot {scope.slot}, the export's last."
        if self.unsure:
            unsure = _count(len(self.unsure), "row")
            yield f"Missing from the export: {unsure} near an end of its range or in its last slot. This can be right."
        yield f"{_count(self.verified, 'row')} verified against the chain, {_count(len(self.problems), 'difference')}."


async def verify(
    path: Path, transport: Transport, program_id: Pubkey | None = None, manifest: Path | None = None
) -> VerificationReport:
    """Check an export against the chain behind `transport`. An accounting file needs its `manifest`.

    `program_id` is the trusted program, by default the program of the IDL. The program named in the file is not
    trusted. Raises `UnreadableError` if the file is damaged or is not an export, `IncompleteError` if the node lacks
    part of the history, ChainUnavailable if the node does not answer, and RpcError if it answers with an error.
    """
    codec = load(program_id)
    with opened(path, manifest) as document, closing(sqlite3.connect(_TEMPORARY)) as db:
        checker = _Checker(document.scope, _ExportedRows(db), codec.program_id)
        checker.read(document.rows)
        history = History(transport, codec)
        if (newest := await history.slot()) < document.scope.slot:
            raise IncompleteError(
                f"the node is at slot {newest}, the export ends with {document.scope.slot}; use another node"
            )
        async for landed in history.walk(checker.address(), *checker.seconds(), seen=document.scope.slot):
            for row in rows_of(landed):
                if row.type in document.types:
                    checker.compare(row)
        checker.finish()
    return checker.report


class _ExportedRows:
    """The export's rows in a temporary database, because they may not fit into memory."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("CREATE TABLE rows (tx_id TEXT PRIMARY KEY, content TEXT NOT NULL, matched INTEGER NOT NULL)")

    def add(self, row: Row) -> bool:
        """Store a row. Return False if there already is one with its id."""
        values = (row["tx_id"], json.dumps(row))
        return self._db.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, 0)", values).rowcount == 1

    def find(self, ids: Iterable[str]) -> Row | None:
        """Return the first unmatched row with one of the ids, and mark it as matched."""
        for tx_id in ids:
            row = self._db.execute("SELECT content FROM rows WHERE tx_id = ? AND matched = 0", (tx_id,)).fetchone()
            if row is not None:
                self._db.execute("UPDATE rows SET matched = 1 WHERE tx_id = ?", (tx_id,))
                found: Row = json.loads(row[0])
                return found
        return None

    def rest(self) -> Iterator[Row]:
        """Yield the unmatched rows."""
        for (content,) in self._db.execute("SELECT content FROM rows WHERE matched = 0"):
            yield json.loads(content)


class _Checker:
    """Reads the export, then compares the chain's rows with it, then judges the export's other rows."""

    def __init__(self, scope: Scope, exported: _ExportedRows, program_id: Pubkey) -> None:
        self.report = VerificationReport(scope)
        self._scope = scope
        self._exported = exported
        self._program_id = program_id
        self._start = -math.inf if scope.from_ is None else _moment(scope.from_)
        self._end = math.inf if scope.to is None else _moment(scope.to)
        self._made = _moment(scope.generated_at)
        self._last = scope.slot
        if scope.program_id != str(program_id):
            self._note(f"the export is about the program {scope.program_id}, not {program_id}")

    def address(self) -> str:
        """Return the address that every transaction of the export names."""
        vault = self._scope.vault
        if (None if vault is None else _wallet_of(vault)) != self._scope.wallet_id:
            raise UnreadableError("the export's wallet id is not the id of the vault that it names")
        return vault or self._scope.org

    def seconds(self) -> tuple[float, float]:
        """Return the earliest and the latest possible Unix second of the blocks of the export's rows."""
        return self._start / 1000 - TOLERANCE, self._end / 1000 + TOLERANCE

    def read(self, rows: Iterator[Row]) -> None:
        """Store the export's rows, and check them as far as possible without the chain."""
        count = 0
        for count, row in enumerate(rows, 1):
            if row["tx_id"] is None:
                self._note(f"row {count} has no tx_id")
            elif not self._exported.add(row):
                self._note(f"{row['tx_id']} is in the export more than once")
            elif not self._is_in_range(row["timestamp"]):
                self._note(f"{row['tx_id']}: timestamp {row['timestamp'] or 'empty'} is not in the export's range")
        if count != self._scope.rows:
            self._note(f"the export has {count} rows and claims to have {self._scope.rows}")

    def compare(self, chain: ExpectedRow) -> None:
        """Compare a row of the chain with the export's row."""
        if chain.org != self._scope.org or self._scope.wallet_id not in {None, chain.wallet_id}:
            return
        row = self._exported.find(chain.ids)
        if row is None:
            self._miss(chain)
            return
        if row["status"] in _OFF_CHAIN and not self._is_due(chain):
            found = list(differences_before(row, chain))
            self.report.landed.append(f"{row['tx_id']}: {row['status']}, confirmed on the chain in slot {chain.slot}")
        else:
            found = list(differences(row, chain, self._program_id))
            if chain.slot > self._scope.slot:
                found.append(f"landed in slot {chain.slot}, after the export's last, {self._scope.slot}")
            # The chain is read backwards. After a match, the export must also have every row from the earlier slots.
            self._last = max(self._last, chain.slot)
        self.report.problems += [f"{row['tx_id']}: {one}" for one in found]
        if not found and row["status"] == "confirmed":
            self.report.verified += 1
            self.report.unverified["memos"] += row["memo"] is not None
            self.report.unverified["names of recipients"] += is_name(row.get("recipient"))
            self.report.unverified["protocols of paid requests"] += row.get("paid_request_protocol") is not None
            self.report.unverified["policies"] += shows_off_chain_policy(row)

    def finish(self) -> None:
        """Judge the export's rows that the chain does not have."""
        for row in self._exported.rest():
            said = f"{row['type']} of {row['amount']}"
            if row["status"] not in _OFF_CHAIN:
                self._note(f"{row['tx_id']}: added: {said} is not on the chain")
                continue
            if self._scope.wallet_id not in {None, row["wallet_id"]}:
                self._note(f"{row['tx_id']} belongs to another wallet, {row['wallet_id'] or 'none'}")
            self.report.off_chain.append(f"{row['tx_id']}: {row['status']} {said} USDC")

    def _is_due(self, chain: ExpectedRow) -> bool:
        """Return True if the export must have this row, given the export's time of creation and its other rows."""
        landed_before = chain.block_time is not None and (chain.block_time + TOLERANCE) * 1000 < self._made
        return chain.slot < self._last or landed_before

    def _miss(self, chain: ExpectedRow) -> None:
        near = False
        if chain.block_time is not None:
            # The export's range refers to the time of the request, but the chain does not have that time.
            early, late = (chain.block_time - TOLERANCE) * 1000, (chain.block_time + TOLERANCE) * 1000
            if late < self._start or early >= self._end:
                return
            near = early < self._start or late >= self._end
        if self._is_due(chain) and not near:
            self._note(f"missing: {chain}")
        elif self._is_due(chain) or chain.slot == self._scope.slot:
            # More rows may have landed in the last slot after the service looked.
            self.report.unsure.append(str(chain))
        else:
            self.report.later += 1

    def _is_in_range(self, timestamp: str | None) -> bool:
        try:
            return self._start <= parse_iso_ms(timestamp or "") < self._end
        except ValueError:
            return False

    def _note(self, problem: str) -> None:
        self.report.problems.append(problem)


def _wallet_of(vault: str) -> str | None:
    try:
        return wallet_id(vault)
    except ValueError:
        return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _moment(text: str) -> int:
    try:
        return parse_iso_ms(text)
    except ValueError:
        raise UnreadableError("a time in the export is malformed") from None
