"""Signs a delivery and sends it, once."""

from collections import Counter
from collections.abc import Callable

from app.core.errors import RequestError
from app.core.timestamps import now_ms
from app.store.deliveries import DeliveryRecord
from app.store.delivery_attempts import DeliveryAttemptRecord
from app.store.webhooks import WebhookRecord
from app.submission.idempotency import Seal
from app.webhooks.sender import Sender
from app.webhooks.signing import headers

PINGS_AT_ONCE = 3
"""Pings of one organisation that are sent at the same time, each to another webhook."""


class Courier:
    """Sends deliveries under the secrets that are in force; `clock` gives Unix milliseconds."""

    def __init__(self, sender: Sender, seal: Seal, *, clock: Callable[[], int] = now_ms) -> None:
        self._sender = sender
        self._seal = seal
        self.clock = clock
        self._pinged: set[str] = set()
        self._pings: Counter[str] = Counter()

    async def ping(self, webhook: WebhookRecord, delivery: DeliveryRecord) -> tuple[DeliveryAttemptRecord, bool]:
        """Make one attempt beside the queue.

        Raises ``chain_unavailable``, and ``rate_limited`` while another ping is sent to this webhook, or as many as
        may be to others of its organisation.
        """
        if webhook.webhook_id in self._pinged or self._pings[webhook.org] >= PINGS_AT_ONCE:
            message = "Another ping is being sent to this webhook, or several to others."
            raise RequestError("rate_limited", message, headers={"Retry-After": "1"})
        self._pinged.add(webhook.webhook_id)
        self._pings[webhook.org] += 1
        try:
            return await self.attempt(webhook, delivery, beside=True)
        finally:
            self._pinged.remove(webhook.webhook_id)
            self._pings[webhook.org] -= 1
            if not self._pings[webhook.org]:
                del self._pings[webhook.org]

    async def attempt(
        self, webhook: WebhookRecord, delivery: DeliveryRecord, *, beside: bool = False
    ) -> tuple[DeliveryAttemptRecord, bool]:
        """Return what came of one attempt, and whether the receiver acknowledged. Raises ``chain_unavailable``."""
        started_at = self.clock()
        body = delivery.body.encode()
        keys = [self.secret(webhook)]
        if webhook.old_secret is not None and started_at < (webhook.old_secret_until or 0):
            keys.append(self._open(webhook.old_secret))
        signed = headers(body, message_id=delivery.event_id, timestamp=started_at // 1000, keys=keys)
        outcome = await self._sender.send(webhook.url, body, signed, owner=webhook.org, beside=beside)
        attempt = DeliveryAttemptRecord(
            delivery_id=delivery.delivery_id,
            attempt=delivery.attempts + 1,
            started_at=started_at,
            duration=outcome.duration,
            status_code=outcome.status_code,
            error=outcome.error,
            excerpt=outcome.excerpt,
        )
        return attempt, outcome.delivered

    def secret(self, webhook: WebhookRecord) -> str:
        """Return the signing secret."""
        return self._open(webhook.secret)

    def hide(self, secret: str) -> str:
        """Return the form in which a secret is stored."""
        return self._seal.encrypt(secret.encode()).decode()

    def _open(self, stored: str) -> str:
        return self._seal.decrypt(stored.encode()).decode()
