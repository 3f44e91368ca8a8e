"""Compares an export with the chain, in both directions."""

import json
import sqlite3
from collections.abc import Iterator
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
"""Statuses of rows that are not on the chain."""


@dataclass(slots=True)
class VerificationReport:
    """What came of it.

    `problems` are the differences between export and chain, a missing and an added row included. `off_chain` are rows
    of which the chain knows nothing, `landed` those that were not confirmed in the export and are on the chain after
    its end. `unsure` are the chain's rows so near an end of the range, or in the last slot, that they may belong to it
    or not; `later` counts those after the export's end. `words` counts, in rows that were verified, what only the
    service knows.
    """

    scope: Scope
    verified: int = 0
    problems: list[str] = field(default_factory=list)
    off_chain: list[str] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    later: int = 0
    words: dict[str, int] = field(default_factory=lambda: {"memos": 0, "names of recipients": 0, "policies": 0})

    def lines(self) -> Iterator[str]:
        """Give the report as text."""
        scope = self.scope
        yield f"Export {scope.export_id}, made {scope.generated_at}, claims to hold"
        yield f"  organisation  {scope.org}"
        yield f"  program       {scope.program_id}"
        yield f"  wallet        {scope.wallet_id or 'all'}"
        yield f"  from          {scope.from_ or 'the beginning'}"
        yield f"  to            {scope.to or 'the end'}, up to slot {scope.slot}"
        yield "These are the file's own words: compare them with what was asked for."
        yield from (f"DIFFERENT {problem}" for problem in self.problems)
        yield from (f"OFF-CHAIN {row}" for row in self.off_chain)
        yield from (f"LANDED    {row}" for row in self.landed)
        yield from (f"UNSURE    {row}" for row in self.unsure)
        yield f"{self.verified} rows verified against the chain, {len(self.problems)} differences."
        yield f"{len(self.off_chain)} rows are off-chain: nothing about them is verified."
        if self.landed:
            yield f"{len(self.landed)} rows landed after the export: only who paid whom how much is verified."
        if self.later:
            yield f"{self.later} further rows of the chain landed after slot {scope.slot}, which the export ends with."
        words = ", ".join(f"{name} ({count})" for name, count in self.words.items())
        yield f"Off-chain in the verified rows, not verified: {words}; explorer links;"
        yield f"  the order of rows; timestamps, only known to lie within {TOLERANCE} seconds of their blocks."
        if self.unsure:
            yield f"{len(self.unsure)} rows of the chain are so near an end of the export that they may be left out."


async def verify(path: Path, transport: Transport, program_id: Pubkey | None = None) -> VerificationReport:
    """Check an export against the chain that `transport` leads to.

    `program_id` is the program that is trusted, by default the one of the IDL; what the file names is not. Raises
    `UnreadableError`, `IncompleteError`, ChainUnavailable and RpcError.
    """
    codec = load(program_id)
    with opened(path) as document, closing(_Book()) as book:
        checker = _Checker(document.scope, book, codec.program_id)
        checker.read(document.rows)
        history = History(transport, codec)
        if (newest := await history.slot()) < document.scope.slot:
            raise IncompleteError(
                f"the node is at slot {newest}, the export ends with {document.scope.slot}: ask another"
            )
        async for landed in history.walk(checker.address(), *checker.seconds(), seen=document.scope.slot):
            for row in rows_of(landed):
                checker.compare(row)
        checker.finish()
    return checker.report


class _Book:
    """The export's rows, kept in a temporary file: there may be more than memory holds."""

    def __init__(self) -> None:
        # An empty name stands for a file that SQLite makes, spills into when it has to, and removes.
        self._db = sqlite3.connect("")
        self._db.execute("CREATE TABLE rows (tx_id TEXT PRIMARY KEY, content TEXT NOT NULL, met INTEGER NOT NULL)")

    def add(self, row: Row) -> bool:
        """Keep a row; false when there is one with its id."""
        values = (row["tx_id"], json.dumps(row))
        return self._db.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, 0)", values).rowcount == 1

    def find(self, ids: Iterator[str]) -> Row | None:
        """Return the first row with one of the ids that was not met yet, and note that it is met."""
        for tx_id in ids:
            row = self._db.execute("SELECT content FROM rows WHERE tx_id = ? AND met = 0", (tx_id,)).fetchone()
            if row is not None:
                self._db.execute("UPDATE rows SET met = 1 WHERE tx_id = ?", (tx_id,))
                found: Row = json.loads(row[0])
                return found
        return None

    def rest(self) -> Iterator[Row]:
        """Give the rows that were not met."""
        for (content,) in self._db.execute("SELECT content FROM rows WHERE met = 0"):
            yield json.loads(content)

    def close(self) -> None:
        """Remove the file."""
        self._db.close()


class _Checker:
    """Goes through the export, then through the chain, then through what is left of the export."""

    def __init__(self, scope: Scope, book: _Book, program_id: Pubkey) -> None:
        self.report = VerificationReport(scope)
        self._scope = scope
        self._book = book
        self._program_id = program_id
        self._start = None if scope.from_ is None else _moment(scope.from_)
        self._end = None if scope.to is None else _moment(scope.to)
        self._made = _moment(scope.generated_at)
        self._last = scope.slot
        if scope.program_id != str(program_id):
            self._note(f"the export is about the program {scope.program_id}, not {program_id}")

    def address(self) -> str:
        """Return the address that every transaction names whose rows the export may have."""
        vault = self._scope.vault
        if (None if vault is None else _wallet_of(vault)) != self._scope.wallet_id:
            raise UnreadableError("the wallet that the export is about is not the one at the address that it names")
        return vault or self._scope.org

    def seconds(self) -> tuple[int | None, int | None]:
        """Return the Unix seconds between which the blocks lie whose rows the export may have."""
        start = None if self._start is None else self._start // 1000 - TOLERANCE
        return start, None if self._end is None else self._end // 1000 + TOLERANCE + 1

    def read(self, rows: Iterator[Row]) -> None:
        """Take in the export and check what shows without the chain."""
        count = 0
        for row in rows:
            count += 1
            if row["tx_id"] is None:
                self._note(f"row {count} has no tx_id")
            elif not self._book.add(row):
                self._note(f"{row['tx_id']} stands in the export more than once")
            elif not self._is_claimed(row["timestamp"]):
                self._note(f"{row['tx_id']}: timestamp {row['timestamp'] or 'empty'} is not in the export's range")
        if count != self._scope.rows:
            self._note(f"the export has {count} rows and claims to have {self._scope.rows}")

    def compare(self, chain: ExpectedRow) -> None:
        """Look for a row of the chain in the export."""
        if chain.org != self._scope.org or self._scope.wallet_id not in {None, chain.wallet_id}:
            return
        row = self._book.find(iter(chain.ids))
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
            # The chain is read backwards: before a row that is there none may be missing.
            self._last = max(self._last, chain.slot)
        self.report.problems += [f"{row['tx_id']}: {one}" for one in found]
        if not found and row["status"] == "confirmed":
            self.report.verified += 1
            self.report.words["memos"] += row["memo"] is not None
            self.report.words["names of recipients"] += is_name(row["recipient"])
            self.report.words["policies"] += shows_off_chain_policy(row)

    def finish(self) -> None:
        """Judge the rows of the export that the chain does not have."""
        for row in self._book.rest():
            if row["status"] in _OFF_CHAIN:
                self._set_aside(row)
            else:
                self._note(f"{row['tx_id']}: added: {row['type']} of {row['amount']} is not on the chain")

    def _is_due(self, chain: ExpectedRow) -> bool:
        """Whether an export made at that time, with those rows, has to have this one, too."""
        landed_before = chain.block_time is not None and (chain.block_time + TOLERANCE) * 1000 < self._made
        return chain.slot < self._last or landed_before

    def _miss(self, chain: ExpectedRow) -> None:
        near = False
        if chain.block_time is not None:
            # When it was asked for is not on the chain, and decides whether it is in the range.
            early, late = (chain.block_time - TOLERANCE) * 1000, (chain.block_time + TOLERANCE) * 1000
            if (self._start is not None and late < self._start) or (self._end is not None and early >= self._end):
                return
            near = (self._start is not None and early < self._start) or (self._end is not None and late >= self._end)
        if self._is_due(chain) and not near:
            self._note(f"missing: {chain}")
        elif self._is_due(chain) or chain.slot == self._scope.slot:
            # In the last slot more may have landed after the service looked.
            self.report.unsure.append(str(chain))
        else:
            self.report.later += 1

    def _set_aside(self, row: Row) -> None:
        if self._scope.wallet_id not in {None, row["wallet_id"]}:
            self._note(f"{row['tx_id']} belongs to another wallet, {row['wallet_id'] or 'none'}")
        self.report.off_chain.append(f"{row['tx_id']}: {row['status']} {row['type']} of {row['amount']} USDC")

    def _is_claimed(self, timestamp: str | None) -> bool:
        try:
            moment = parse_iso_ms(timestamp or "")
        except ValueError:
            return False
        return (self._start is None or moment >= self._start) and (self._end is None or moment < self._end)

    def _note(self, problem: str) -> None:
        self.report.problems.append(problem)


def _wallet_of(vault: str) -> str | None:
    try:
        return wallet_id(vault)
    except ValueError:
        return None


def _moment(text: str) -> int:
    try:
        return parse_iso_ms(text)
    except ValueError:
        raise UnreadableError("a time that the export names is none") from None
