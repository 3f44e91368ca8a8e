"""The brake: from the moment a freeze, a pause or a revocation is asked for, nothing that it forbids is sent any more.

The chain's own refusal comes later, and payments that already wait would be sent before it. So whoever asks engages a
brake, which holds in memory at once and as a row over restarts. It is asked in the database transaction that stores an
attempt, and again immediately before the first send. What was stored and never sent is recorded as failed; what may
have been sent is not sent again.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

import structlog
from sqlalchemy import Connection

from app.access.keyring import Principal, unauthenticated
from app.access.recorder import Recorder
from app.core.actors import Actor
from app.core.errors import ApiError, AuthenticationError, BusinessError, UnavailableError
from app.core.timestamps import now_ms
from app.database.interface import WRITE_ERRORS, Database
from app.store.attempts import Attempt, mark_braked, stopped_by
from app.store.audit import NewLogEntry, append
from app.store.audit_actions import Action
from app.store.brakes import (
    REVOKED,
    BrakeKind,
    BrakeRow,
    all_brakes,
    brakes_on,
    delete_brake,
    orphaned_brakes,
    put_brake,
)
from app.submission.plan import PlanType

_log = structlog.get_logger(__name__)

#: The error of what a brake stops: also the `error` of an attempt that was stored and never sent.
STOPPED: dict[str, tuple[type[ApiError], str]] = {
    "freeze": (BusinessError, "wallet_frozen"),
    "pause": (BusinessError, "org_paused"),
    "session": (AuthenticationError, "session_token_invalid"),
}
#: What the audit log calls the request for a brake; a session's is recorded with the rotation that it serves.
_ASKED: Mapping[str, Action] = {"freeze": "wallet.freeze", "pause": "organization.pause"}
#: Seconds in which a brake's row must be stored before the chain is asked all the same.
SHOWN = 1.0
_LATER = "A freeze or pause was asked for and is not finished. Repeat the request once it is."


@dataclass(slots=True, eq=False)
class EngagedBrake:
    """A brake that is engaged, and how many requests are putting it into force on the chain.

    Without its row, which a full disk prevents, it ends with the process.
    """

    row: BrakeRow
    requests: int = 0
    writing: set[asyncio.Task[None]] = field(default_factory=set)
    stored: bool = False

    @property
    def wallet_id(self) -> str | None:
        """The wallet; None if the brake is on the whole organisation."""
        return None if self.row.scope == self.row.org else self.row.scope

    async def is_stored(self, patience: float) -> bool:
        """Whether the row is stored; waits at most so many seconds while it is being written."""
        if not self.stored and self.writing:
            await asyncio.wait(self.writing, timeout=patience)
        return self.stored


class Brakes:
    """The brakes that are engaged: in memory, and as rows. ``types`` are the types of all plans.

    Whoever asks is recorded in the audit log with the row, or by ``recorder`` once the database can be written again.
    """

    def __init__(self, db: Database, types: Iterable[PlanType], recorder: Recorder) -> None:
        self._db = db
        self._recorder = recorder
        self._holds: dict[tuple[str, str], EngagedBrake] = {}
        types = list(types)
        spending = [one.name for one in types if one.braked]
        self._types = {kind: [*spending, *(one.name for one in types if one.lifts == kind)] for kind in STOPPED}

    async def load(self) -> None:
        """Engage what an earlier process left engaged; a session's brake ended with the rotation that it served."""
        if self._db.node:
            await self.take_over_orphans()
            return

        def take(conn: Connection) -> list[BrakeRow]:
            rows = all_brakes(conn)
            for row in rows:
                if row.kind == "session":
                    delete_brake(conn, row)
            return [row for row in rows if row.kind != "session"]

        for row in await self._db.write(take):
            self._holds[row.scope, row.kind] = EngagedBrake(row, stored=True)

    async def take_over_orphans(self) -> None:
        """Take over the brakes of dead nodes, as ``load`` does after a restart; others may do so at the same time."""
        node = self._db.node

        def take(conn: Connection) -> list[BrakeRow]:
            rows = orphaned_brakes(conn, node)
            for row in rows:
                delete_brake(conn, row)
            mine = [replace(row, node=node) for row in rows if row.kind != "session"]
            for row in mine:
                put_brake(conn, row)
            return mine

        if await self._db.look_up(lambda conn: orphaned_brakes(conn, node)):
            for row in await self._db.write(take):
                self._holds.setdefault((row.scope, row.kind), EngagedBrake(row, stored=True))

    def engage(self, by: Principal, wallet_id: str | None, kind: BrakeKind) -> EngagedBrake:
        """Engage a brake for a request, at once; the row is written meanwhile, and memory holds if it cannot be."""
        org = by.org
        scope = wallet_id or org
        hold = self._holds.get((scope, kind))
        if hold is None:
            hold = self._holds[scope, kind] = EngagedBrake(
                BrakeRow(scope, kind, org, by.actor, now_ms(), self._db.node)
            )
        hold.requests += 1
        entry = None if kind == "session" else by.entry(_ASKED[kind], scope)
        task = asyncio.create_task(self._write(hold, entry), name=f"brake_{kind}")
        hold.writing.add(task)
        task.add_done_callback(hold.writing.discard)
        return hold

    async def show(self, hold: EngagedBrake) -> None:
        """Let other nodes see a brake before the chain is looked at; without a database, they cannot store anything."""
        if self._db.node:
            await hold.is_stored(SHOWN)

    def is_engaged(self, scope: str, kind: BrakeKind) -> bool:
        """Whether such a brake on a wallet or an organisation is engaged in this process."""
        return (scope, kind) in self._holds

    async def release(self, hold: EngagedBrake) -> None:
        """End a request's brake: the chain refuses by itself now, or refused the brake."""
        hold.requests -= 1
        await self.lift(hold)

    def leave(self, hold: EngagedBrake) -> None:
        """End a request whose brake stays engaged, because the chain has not confirmed it."""
        hold.requests -= 1

    async def lift(self, hold: EngagedBrake) -> None:
        """Release a brake unless a request still needs it; if its row cannot be deleted, it stays engaged."""
        if hold.requests:
            return
        row = hold.row

        def remove(conn: Connection) -> None:
            self._stop(conn, hold)
            delete_brake(conn, row)

        try:
            await self._db.write(remove)
        except WRITE_ERRORS as error:
            _log.warning("brake_not_released", scope=row.scope, kind=row.kind, error=str(error))
            return
        if not hold.requests and self._holds.get((row.scope, row.kind)) is hold:
            del self._holds[row.scope, row.kind]

    def without_request(self) -> list[EngagedBrake]:
        """Return the brakes that no request is putting into force."""
        return [hold for hold in self._holds.values() if not hold.requests]

    def stops(self, kind: PlanType, org: str, wallet_id: str | None, *, attested: bool) -> BrakeKind | None:
        """Return the kind of the brake in memory that stops such a transaction, if one does."""
        return _stopping(self._holds, kind, org, wallet_id, attested=attested) if self._holds else None

    def check(self, kind: PlanType, org: str, wallet_id: str | None, *, attested: bool) -> None:
        """Raise the error of the brake in memory that stops such a transaction, if one does."""
        found = self.stops(kind, org, wallet_id, attested=attested)
        if found is not None:
            raise stopped_error(kind, found)

    async def check_all_nodes(self, kind: PlanType, org: str, wallet_id: str | None) -> None:
        """Raise as ``check`` does, also for brakes that other nodes have engaged."""
        if self._db.node:
            await self._db.look_up(lambda conn: self.check_rows(conn, kind, org, wallet_id, attested=False))
        self.check(kind, org, wallet_id, attested=False)

    async def blocking_kind(self, kind: PlanType, attempt: Attempt) -> BrakeKind | None:
        """Return the kind of the brake that stops a stored attempt, asked right before it is sent."""
        row = None
        if self._db.node and (kind.braked or kind.lifts is not None):
            # Whoever engages one marks, in the same transaction, what is stored by then.
            row = await self._db.look_up(lambda conn: stopped_by(conn, attempt.tx_id))
        attested = attempt.attestation_hash is not None
        found = self.stops(kind, attempt.org, attempt.wallet_id, attested=attested)
        return found or next((one for one in get_args(BrakeKind) if one == row), None)

    def check_rows(
        self,
        conn: Connection,
        kind: PlanType,
        org: str,
        wallet_id: str | None,
        *,
        attested: bool,
        asked_by: Actor | None = None,
    ) -> None:
        """Raise as ``check`` does, also for the rows: another process may have engaged it.

        Raises ``authentication_failed`` if the key of ``asked_by`` was revoked since the request came in.
        """
        if not kind.braked and kind.lifts is None:
            return
        self.check(kind, org, wallet_id, attested=attested)
        key_id = asked_by.id if asked_by is not None and asked_by.type == "key" else ""
        engaged = brakes_on(conn, org, wallet_id, key_id, now_ms())
        found = _stopping(engaged, kind, org, wallet_id, attested=attested)
        if found is not None:
            raise stopped_error(kind, found)
        if (key_id, REVOKED) in engaged:
            raise unauthenticated()

    def refused(self, hold: EngagedBrake, reason: str) -> None:
        """Record that the chain refused a brake."""
        row = hold.row
        self._recorder.later(
            NewLogEntry(row.org, "brake.refused", row.actor, row.scope, details={"kind": row.kind, "reason": reason})
        )

    async def _write(self, hold: EngagedBrake, entry: NewLogEntry | None) -> None:
        def put(conn: Connection) -> None:
            put_brake(conn, hold.row)
            self._stop(conn, hold)

        def put_and_record(conn: Connection) -> None:
            put(conn)
            if entry is not None:
                append(conn, entry)

        try:
            await self._db.write(put_and_record)
        except Exception as error:  # noqa: BLE001 - whatever the log's fault is, the brake is stored without it
            _log.warning("brake_not_recorded", scope=hold.row.scope, kind=hold.row.kind, error=str(error))
            if entry is not None:
                self._recorder.later(entry)
        else:
            hold.stored = True
            return
        try:
            await self._db.write(put)
        except WRITE_ERRORS as error:
            _log.warning("brake_not_stored", scope=hold.row.scope, kind=hold.row.kind, error=str(error))
        else:
            hold.stored = True

    def _stop(self, conn: Connection, hold: EngagedBrake) -> None:
        row, types = hold.row, self._types[hold.row.kind]
        mark_braked(conn, row.org, row.kind, types, wallet_id=hold.wallet_id, attested=row.kind == "session")


def stopped_error(kind: PlanType, brake: BrakeKind) -> ApiError:
    """Return the error for a transaction that a brake stopped."""
    if kind.lifts is not None:
        return UnavailableError("chain_unavailable", _LATER, headers={"Retry-After": "1"})
    family, code = STOPPED[brake]
    return family(code)


def _stopping(
    engaged: Container[tuple[str | None, str]], kind: PlanType, org: str, wallet_id: str | None, *, attested: bool
) -> BrakeKind | None:
    forbidden: list[tuple[str | None, BrakeKind]] = []
    if kind.braked:
        forbidden = [(wallet_id, "freeze"), (org, "pause")]
    if kind.braked and attested:
        forbidden.append((wallet_id, "session"))
    if kind.lifts is not None:
        forbidden.append((wallet_id or org, kind.lifts))
    return next((name for scope, name in forbidden if (scope, name) in engaged), None)
