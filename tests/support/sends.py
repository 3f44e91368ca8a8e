"""The transactions that a world's service sends to the chain, in order."""

import base64
import json
from collections import Counter

from sqlalchemy import select

from app.core.transaction_types import ESCROW_LOCK, PAYMENT
from app.store.attempts import table as attempts
from tests.support.service_world import ServiceWorld


class Sends:
    """Records the transactions that a world's service sends from now on, until the world is restarted."""

    def __init__(self, world: ServiceWorld) -> None:
        self._world = world
        self.raw: list[bytes] = []
        through = world.line.through

        async def record(body: bytes) -> bytes:
            request = json.loads(body)
            if isinstance(request, dict) and request["method"] == "sendTransaction":
                self.raw.append(base64.b64decode(request["params"][0]))
            return await through(body)

        world.line.through = record

    def payments(self, *, after: int = 0) -> Counter[str]:
        """Count the payments and escrows sent for each wallet, leaving out the first ``after`` transactions."""
        spending = select(attempts.c.raw, attempts.c.wallet_id).where(attempts.c.type.in_((PAYMENT, ESCROW_LOCK)))
        rows = self._world.service.db.read_now(lambda conn: conn.execute(spending).all())
        wallets = {bytes(raw): str(wallet_id) for raw, wallet_id in rows if raw is not None}
        return Counter(wallets[raw] for raw in self.raw[after:] if raw in wallets)
