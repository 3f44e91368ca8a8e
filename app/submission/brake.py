"""Brakes stop payments locally while a freeze, a pause or an operator's token rotation is on its way to the chain.

Without them, queued payments would be sent before the chain starts to refuse. A request engages its brake in memory
immediately, and stores it as a row. The rows of freezes and pauses survive restarts. Brakes are checked before a
transaction is signed, in the database transaction that stores its attempt, and again just before each send. If a brake
stops an attempt that was stored but never sent, the attempt is recorded as failed. An attempt that may already have
been sent is not resent.
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

#: The error for an expense that a brake stops, by the brake's kind. The code also becomes the `error` of any stopped
#: attempt that was stored but never sent, or that was sent and expires.
STOPPED: dict[str, tuple[type[ApiError], str]] = {
    "freeze": (BusinessError, "wallet_frozen"),
    "pause": (BusinessError, "org_paused"),
    "session": (AuthenticationError, "session_token_invalid"),
}
#: Audit action that records who requested each kind of brake. A session brake is recorded with its token rotation.
_ASKED: Mapping[str, Action] = {"freeze": "wallet.freeze", "pause": "organization.pause"}
#: Seconds to wait for a brake's row before proceeding without it.
SHOWN = 1.0
_LATER = "An earlier freeze or pause is still being enforced. Repeat the request once it is finished."


@dataclass(slots=True, eq=False)
class EngagedBrake:
    """An engaged brake and the number of requests that are enforcing it on the chain.

    If its row cannot be stored, for example because the disk is full, the brake lasts only until the process ends.
    """

    row: BrakeRow
    requests: int = 0
    writing: set[asyncio.Task[None]] = field(default_factory=set)
    stored: bool = False

    @property
    def wallet_id(self) -> str | None:
        """The wallet whose payments the brake stops. None if the brake applies to the whole organisation."""
        return None if self.row.scope == self.row.org else self.row.scope

    async def is_stored(self, patience: float) -> bool:
        """Return True if the row is stored. Wait up to `patience` seconds for a write in progress."""
        if not self.stored and self.writing:
            await asyncio.wait(self.writing, timeout=patience)
        return self.stored


class Brakes:
    """The engaged brakes, in memory and as rows. ``types`` are all plan types.

    For a freeze or a pause, the audit log records the actor together with the row, or later through ``recorder`` if
    that write fails.
    """

    def __init__(self, db: Database, types: Iterable[PlanType], recorder: Recorder) -> None:
        self._db = db
        self._recorder = recorder
        self._holds: dict[tuple[str, str], EngagedBrake] = {}
        types = list(types)
        spending = [one.name for one in types if one.braked]
        self._types = {kind: [*spending, *(one.name for one in types if one.lifts == kind)] for kind in STOPPED}

    async def load(self) -> None:
        """Re-engage an earlier process's brakes. Delete session brakes: their rotations ended with that process."""
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
        """Take over the brakes of dead nodes, like ``load`` after a restart.

        Several nodes may run this concurrently.
        """
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
        """Engage a brake for a request immediately, in memory. Its row is written in the background, if possible."""
        org = by.org
        scope = wallet_id or org
        hold = self._holds.get((scope, kind))
        if hold is None:
            row = BrakeRow(scope=scope, kind=kind, org=org, actor=by.actor, since=now_ms(), node=self._db.node)
            hold = self._holds[scope, kind] = EngagedBrake(row)
        hold.requests += 1
        entry = None if kind == "session" else by.entry(_ASKED[kind], scope)
        task = asyncio.create_task(self._write(hold, entry), name=f"brake_{kind}")
        hold.writing.add(task)
        task.add_done_callback(hold.writing.discard)
        return hold

    async def show(self, hold: EngagedBrake) -> None:
        """Wait until other nodes can see a brake, at most `SHOWN` seconds. Call this before reading the chain.

        A longer wait is unnecessary: while the database is unavailable, the other nodes cannot store payments either.
        """
        if self._db.node:
            await hold.is_stored(SHOWN)

    def is_engaged(self, scope: str, kind: BrakeKind) -> bool:
        """Return True if a brake of this kind is engaged in this process on the wallet or organisation."""
        return (scope, kind) in self._holds

    async def release(self, hold: EngagedBrake) -> None:
        """Detach a request from its brake, and lift the brake unless another request still needs it.

        Call this once the chain enforces or refuses the brake, or once its token rotation has succeeded or failed.
        """
        hold.requests -= 1
        await self.lift(hold)

    def leave(self, hold: EngagedBrake) -> None:
        """Detach a request from its brake. The brake stays engaged, because the chain may not enforce it yet."""
        hold.requests -= 1

    async def lift(self, hold: EngagedBrake) -> None:
        """Release a brake unless a request still needs it. The brake stays engaged if its row cannot be deleted."""
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
        """Return the engaged brakes without a request that is enforcing them."""
        return [hold for hold in self._holds.values() if not hold.requests]

    def stops(self, kind: PlanType, org: str, wallet_id: str | None, *, attested: bool) -> BrakeKind | None:
        """Return the kind of the in-memory brake that stops a transaction of this type, or None."""
        return _stopping(self._holds, kind, org, wallet_id, attested=attested) if self._holds else None

    def check(self, kind: PlanType, org: str, wallet_id: str | None, *, attested: bool) -> None:
        """Raise the error of the in-memory brake that stops a transaction of this type, if there is one."""
        found = self.stops(kind, org, wallet_id, attested=attested)
        if found is not None:
            raise stopped_error(kind, found)

    async def check_all_nodes(self, kind: PlanType, org: str, wallet_id: str | None) -> None:
        """Like ``check``, but include the brakes that other nodes have engaged."""
        if self._db.node:
            await self._db.look_up(lambda conn: self.check_rows(conn, kind, org, wallet_id, attested=False))
        self.check(kind, org, wallet_id, attested=False)

    async def blocking_kind(self, kind: PlanType, attempt: Attempt) -> BrakeKind | None:
        """Return the kind of the brake that stops a stored attempt, or None. Call this just before a send."""
        row = None
        if self._db.node and (kind.braked or kind.lifts is not None):
            # The database transaction that stores a brake also marks the attempts that were stored before the brake.
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
        """Like ``check``, but also read the stored rows, because another process may have engaged a brake.

        For a transaction that spends money or lifts a brake, also raises ``authentication_failed`` if the API key of
        ``asked_by`` was revoked after the request was authenticated.
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

    def check_session(self, conn: Connection, org: str, wallet_id: str) -> None:
        """Raise ``session_token_invalid`` during a rotation of the wallet's session token by an operator or admin.

        The rotation can run on this node or another. An agent's own rotation does not count.
        """
        key = wallet_id, "session"
        if key in self._holds or key in brakes_on(conn, org, wallet_id, "", now_ms()):
            family, code = STOPPED["session"]
            raise family(code)

    def refused(self, hold: EngagedBrake, reason: str) -> None:
        """Record in the audit log that a brake, or the change that it was engaged for, was refused.

        The chain or a check of the service has refused it.
        """
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
        except Exception as error:  # noqa: BLE001 - if its audit entry fails, store the brake without it
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
