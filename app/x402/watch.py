"""Looks after payments that were handed out, once it is known what became of them."""

from sqlalchemy import Connection

from app.chain.clock import ChainClock
from app.core.background import Periodic
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.store.database import Database
from app.store.feed import append_event
from app.store.x402 import EndedPayload, close_payload, ended_payloads

PAID_WITHOUT_RESOURCE = "x402.paid_without_resource"
_BATCH = 200


class PayloadWatch(Periodic):
    """Reports payments that landed although the resource was not given, every ``interval`` seconds.

    What the facilitator or the resource says about a settlement is believed in neither direction: the chain tells.
    """

    name = "x402"

    def __init__(self, db: Database, clock: ChainClock, *, interval: float, patience: float) -> None:
        """Give a resource ``patience`` seconds to answer."""
        super().__init__(interval)
        self._db = db
        self._clock = clock
        self._patience_ms = int(patience * 1000)

    async def tick(self) -> int:
        """Deal with payloads that have ended, and return their number."""
        before = self._clock.seen_ms() - self._patience_ms
        ended = await self._db.read(lambda conn: ended_payloads(conn, _BATCH, before=before))
        for one in ended:
            await self._db.write(lambda conn, one=one: self._close(conn, one))  # type: ignore[misc]
        return len(ended)

    def _close(self, conn: Connection, ended: EndedPayload) -> None:
        now = self._clock.seen_ms()
        if not close_payload(conn, ended.tx_id, now):
            return
        got = ended.resource_status is not None and 200 <= ended.resource_status < 300
        # Nobody but the client knows what became of a request that it made itself.
        if ended.status != "confirmed" or got or not ended.fetched:
            return
        amount = format_usdc(ended.amount)
        append_event(
            conn,
            event_id=derived_id(EVENT_PREFIX, ended.tx_id, PAID_WITHOUT_RESOURCE),
            org=ended.org,
            type=PAID_WITHOUT_RESOURCE,
            timestamp=now,
            wallet_id=ended.wallet_id,
            summary=f"{amount} USDC paid for {ended.url}, which did not answer with success",
            payload={
                "wallet_id": ended.wallet_id,
                "tx_id": ended.tx_id,
                "tx_signature": ended.signature,
                "amount": amount,
                "url": ended.url,
                "resource_status": ended.resource_status,
                "timestamp": iso_ms(now),
            },
        )
