"""Closes issued payments once their outcome is known."""

import structlog
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ApiError
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.money import format_usdc
from app.store.allowances import OUTSTANDING
from app.store.feed import append_event
from app.store.x402 import (
    EndedIssuedPayment,
    IssuedPayment,
    close_issued_payment,
    ended_issued_payments,
    is_success,
    open_delegations,
    protocol_of,
)
from app.submission.context import Service
from app.x402.settlement.allowance import allowance_for, conclude

_log = structlog.get_logger(__name__)

PAID_WITHOUT_RESOURCE = "x402.paid_without_resource"
_BATCH = 200


class IssuedPaymentWatch(Periodic):
    """Settles the allowances of finished issued payments, and reports payments without a delivered resource.

    A payment is reported only if it is confirmed and the service itself sent the request to the resource.

    An allowance is settled as soon as the resource has answered, the transfer has landed or its blockhash has expired.
    If the service itself receives the resource, that request settles the allowance.

    Claims of the facilitator or the resource about a settlement are never believed, in either direction. Only the chain
    counts.
    """

    name = "x402"
    outages = (ChainUnavailable,)

    def __init__(self, service: Service, *, interval: float, patience: float) -> None:
        """Check every ``interval`` seconds, and give a resource ``patience`` seconds to answer."""
        super().__init__(interval)
        self._service = service
        self._db = service.db
        self._clock = service.clock
        self._patience_ms = int(patience * 1000)

    async def tick(self) -> int:
        """Settle allowances, close the issued payments that have ended, and return the number of closed payments."""
        await self._settle()
        before = self._clock.seen_ms() - self._patience_ms
        ended = await self._db.look_up(lambda conn: ended_issued_payments(conn, _BATCH, before=before))
        for one in ended:
            await self._db.write(lambda conn, one=one: self._close(conn, one))  # type: ignore[misc]
        return len(ended)

    async def _settle(self) -> None:
        """Settle the allowances of finished issued payments, and find the transfers of the delegates that have paid."""
        service = self._service
        found = await self._db.look_up(lambda conn: open_delegations(conn, _BATCH))
        if not found:
            return
        height = (await service.chain.last_finalized_block()).height
        for issued in found:
            try:
                if await self._is_done(issued, height):
                    await conclude(service, issued)
            except (ApiError, RpcError) as error:
                # The keeper settles the allowance when it expires.
                _log.warning("allowance_not_settled", tx_id=issued.tx_id, error=str(error))

    async def _is_done(self, issued: IssuedPayment, height: int) -> bool:
        if issued.resource_status is not None or height > (issued.last_valid_block_height or 0):
            return True
        allowed = await allowance_for(self._service, issued)
        if allowed is None or allowed.status != OUTSTANDING:
            return allowed is not None
        left = await self._service.chain.token_balance(Pubkey.from_string(allowed.tokens))
        return not left

    def _close(self, conn: Connection, ended: EndedIssuedPayment) -> None:
        now = self._clock.seen_ms()
        if not close_issued_payment(conn, ended.tx_id, now):
            return
        # Only the client knows the outcome of a request that it sent itself.
        if ended.status != "confirmed" or is_success(ended.resource_status) or not ended.fetched:
            return
        amount = format_usdc(ended.amount)
        append_event(
            conn,
            event_id=derived_id(EVENT_PREFIX, ended.tx_id, PAID_WITHOUT_RESOURCE),
            org=ended.org,
            type=PAID_WITHOUT_RESOURCE,
            timestamp=now,
            wallet_id=ended.wallet_id,
            summary=f"{amount} USDC paid for {ended.url}, but the resource did not answer with success",
            payload={
                "wallet_id": ended.wallet_id,
                "tx_id": ended.tx_id,
                "tx_signature": ended.signature,
                "amount": amount,
                "protocol": protocol_of(ended.header),
                "url": ended.url,
                "resource_status": ended.resource_status,
            },
        )
