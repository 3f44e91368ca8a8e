"""Compares the read models with the chain, and checks each difference twice before reporting it.

First, a difference counts only if the indexer agrees with the chain about the fact, because a change on the chain may
not be indexed yet. For a balance, the indexer's stored transfers must match, including deposits by outsiders. For most
other facts, the sequence number of the account's last event must match. Second, the difference must still exist,
unchanged, at a second look after all stored rows were applied. No lock is held, so no request waits for the
comparison's calls to the chain.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import structlog
from sqlalchemy import Connection

from app.api.metrics import Metrics, ReconciliationResult
from app.chain.client import ACCOUNT_BATCH
from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.identifiers import wallet_id
from app.core.timestamps import now_ms
from app.reconciliation._events import append_cleared, append_difference
from app.reconciliation.facts import (
    BALANCE,
    COVERED,
    Model,
    OnChainState,
    Subject,
    differing,
    on_chain_state,
    read_model_state,
)
from app.reconciliation.subjects import subjects
from app.store import reconciliation as store
from app.store.reconciliation import Difference, ReserveModel, WalletModel
from app.submission.context import Service
from indexer.records import Position

_log = structlog.get_logger(__name__)

_Differences = dict[str, Any]
_PACE = 0.05
"""Seconds between two calls to the node."""
_SECOND_LOOK = 2.0
"""Seconds until differences are looked at again."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The service's knowledge of a subject: its read model, and the position of the indexer."""

    model: Model | None
    position: Position


@dataclass(frozen=True, slots=True)
class _Observation:
    """A subject as seen at `slot`; `differences` is empty if the chain and the read models agree."""

    subject: Subject
    slot: int
    sequence: int | None
    model: Model | None
    differences: _Differences
    certain: _Differences
    """The differences about which the indexer agrees with the chain."""

    def confirmed(self, earlier: "_Observation") -> _Differences:
        """Return the certain differences that were the same at an earlier look, with nothing applied in between.

        The balance of a busy wallet changes too often to be compared. The wallet's other facts are compared if the read
        model has exactly the chain's events.
        """
        same = {name: values for name, values in self.certain.items() if earlier.certain.get(name) == values}
        if self.model == earlier.model:
            return same
        match self.model, earlier.model:
            case WalletModel(sequence=sequence), _ if sequence == self.sequence:
                unmoved = True
            case ReserveModel() as now, ReserveModel() as before:
                unmoved = now == replace(before, balance=now.balance, slot=now.slot)
            case _:
                unmoved = False
        return {name: values for name, values in same.items() if unmoved and name != BALANCE}


class Reconciliation(Periodic):
    """Compares every reserve, wallet and open escrow at the start and every `interval` seconds."""

    name = "reconciliation"
    outages: ClassVar[tuple[type[Exception], ...]] = (ChainUnavailable, RpcError)

    def __init__(
        self, service: Service, *, interval: float = 300.0, pace: float = _PACE, second_look: float = _SECOND_LOOK
    ) -> None:
        super().__init__(interval)
        self._service = service
        self._metrics = service.part(Metrics)
        self._pace = pace
        self._second_look = second_look

    async def tick(self) -> ReconciliationResult:
        """Compare everything once. If it raises `ChainUnavailable` or `RpcError`, no difference is reported."""
        try:
            result, undecided = await self._compare()
        except Exception:
            self._metrics.reconciled("incomplete", None)
            raise
        self._metrics.reconciled(result, undecided)
        return result

    async def _compare(self) -> tuple[ReconciliationResult, int]:
        wanted = await subjects(self._service)
        looks = await self._look_at(wanted, seen=0)
        slot = max((one.slot for one in looks), default=0)
        doubtful = {one.subject.address: one for one in looks if one.differences}
        if doubtful:
            await asyncio.sleep(self._second_look)
            await self._service.indexer.catch_up(seen=slot)
            await self._service.projector.catch_up()
            again = await self._look_at([one.subject for one in doubtful.values()], seen=slot)
            looks = [one for one in looks if not one.differences] + again
        clean = [one for one in looks if not one.differences]
        found = [
            (one, confirmed)
            for one in looks
            if one.differences and (confirmed := one.confirmed(doubtful[one.subject.address]))
        ]
        undecided = len(looks) - len(found) - len(clean)
        await self._report(found, clean, {one.address for one in wanted}, slot)
        if undecided:
            _log.info("reconciliation_undecided", accounts=undecided)
        return ("differences" if found else "clean"), undecided

    async def _report(
        self,
        found: Sequence[tuple[_Observation, _Differences]],
        clean: Sequence[_Observation],
        wanted: set[str],
        slot: int,
    ) -> None:
        """Store and report new differences. Clear the stored ones of subjects that agree now or have ended."""
        reported = await self._service.db.read(store.differences)
        agrees = {one.subject.address: one.slot for one in clean}
        over = [one for one in reported.values() if one.address in agrees or one.address not in wanted]
        now = now_ms()

        def record(conn: Connection) -> list[Difference]:
            new = []
            for look, confirmed in found:
                before = reported.get(look.subject.address)
                # A reported difference that still exists is kept, even if a movement makes it uncertain now.
                kept = {name: one for name, one in (before.found if before else {}).items() if name in look.differences}
                difference = _difference(look.subject, kept | confirmed, now)
                if store.put_difference(conn, difference):
                    append_difference(conn, difference, look.slot, now)
                    new.append(difference)
            for difference in over:
                if store.delete_difference(conn, difference.address):
                    append_cleared(conn, difference, agrees.get(difference.address, slot), now)
            return new

        if not found and not over:
            return
        for difference in await self._service.db.write(record):
            _log.error(
                "differs_from_the_chain",
                subject=difference.subject,
                address=difference.address,
                wallet_id=difference.wallet_id,
                escrow_id=difference.escrow_id,
                differences=difference.found,
            )

    async def _look_at(self, wanted: Sequence[Subject], *, seen: int) -> list[_Observation]:
        looks: list[_Observation] = []
        for batch in _batches(wanted):
            looks += await self._look(batch, seen)
            await asyncio.sleep(self._pace)
        return looks

    async def _look(self, batch: Sequence[Subject], seen: int) -> list[_Observation]:
        """Read a batch from the chain, all at one slot, and the service's knowledge before and after that."""
        keys = sorted({address for one in batch for address in one.accounts})
        before = await self._known(batch)
        slot, accounts = await self._service.chain.accounts_at(keys, seen=seen)
        after = await self._known(batch)
        found = dict(zip(keys, accounts, strict=True))
        looks = []
        for subject, *known in zip(batch, before, after, strict=True):
            chain = on_chain_state(subject, found, self._service.codec)
            first, second = (_look_of(subject, slot, chain, one) for one in known)
            if chain.sequence not in {None, known[1].position.sequence}:
                self._service.indexer.check_for_gap(subject.stream, chain.sequence or 0)
            looks.append(first if not first.differences else second)
        return looks

    async def _known(self, batch: Sequence[Subject]) -> list[_Known]:
        """Return the service's knowledge of each subject. Read the read models first, then the indexer's positions."""
        by_kind = {kind: [one.address for one in batch if one.kind == kind] for kind in ("reserve", "wallet", "escrow")}

        def read(conn: Connection) -> dict[str, Model]:
            return {
                **store.reserve_models(conn, by_kind["reserve"]),
                **store.wallet_models(conn, by_kind["wallet"]),
                **store.escrow_models(conn, by_kind["escrow"]),
            }

        models = await self._service.db.read(read)
        positions = await self._service.indexer.positions([(one.stream, one.tokens) for one in batch])
        return [_Known(models.get(one.address), position) for one, position in zip(batch, positions, strict=True)]


def _look_of(subject: Subject, slot: int, chain: OnChainState, known: _Known) -> _Observation:
    differences = differing(chain.facts, read_model_state(known.model))
    certain = {name: values for name, values in differences.items() if _is_certain(name, chain, known.position)}
    return _Observation(subject, slot, chain.sequence, known.model, differences, certain)


def _is_certain(name: str, chain: OnChainState, position: Position) -> bool:
    """Return True if the indexer has stored all on-chain data about a fact."""
    if name == COVERED:
        # If the fact `covered` differs without being false on the chain, then either the chain or the read models lack
        # the escrow. The fact `open` reports that difference.
        return chain.facts.get(COVERED) is False
    if name == BALANCE:
        return position.balance == chain.balance
    # An archived vault has no sequence number on the chain, so its other facts are always uncertain.
    return chain.sequence is not None and chain.sequence == position.sequence


def _difference(subject: Subject, found: _Differences, now: int) -> Difference:
    return Difference(
        address=subject.address,
        org=subject.org,
        subject=subject.kind,
        wallet_id=None if subject.kind == "reserve" else wallet_id(subject.stream),
        escrow_id=subject.escrow_id,
        found=found,
        since=now,
    )


def _batches(wanted: Sequence[Subject]) -> Iterator[list[Subject]]:
    """Divide subjects into batches with accounts that fit into one call."""
    batch: list[Subject] = []
    keys: set[str] = set()
    for one in wanted:
        if len(keys | set(one.accounts)) > ACCOUNT_BATCH:
            yield batch
            batch, keys = [], set()
        batch.append(one)
        keys |= set(one.accounts)
    if batch:
        yield batch
