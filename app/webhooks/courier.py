"""Signs a delivery and sends it, once."""

from collections.abc import Callable

from app.idempotency import Seal
from app.store.deliveries import Attempt, Delivery
from app.store.webhooks import Webhook
from app.timestamps import now_ms
from app.webhooks.sender import Sender
from app.webhooks.signing import headers


class Courier:
    """Sends deliveries under the secrets that are in force; `clock` gives Unix milliseconds."""

    def __init__(self, sender: Sender, seal: Seal, *, clock: Callable[[], int] = now_ms) -> None:
        self._sender = sender
        self._seal = seal
        self.clock = clock

    async def attempt(self, webhook: Webhook, delivery: Delivery) -> tuple[Attempt, bool]:
        """Return what came of one attempt, and whether the receiver acknowledged. Raises ``chain_unavailable``."""
        started_at = self.clock()
        body = delivery.body.encode()
        keys = [self.secret(webhook)]
        if webhook.old_secret is not None and started_at < (webhook.old_secret_until or 0):
            keys.append(self._open(webhook.old_secret))
        signed = headers(body, message_id=delivery.event_id, timestamp=started_at // 1000, keys=keys)
        outcome = await self._sender.send(webhook.url, body, signed)
        attempt = Attempt(
            delivery_id=delivery.delivery_id,
            attempt=delivery.attempts + 1,
            started_at=started_at,
            duration=outcome.duration,
            status_code=outcome.status_code,
            error=outcome.error,
            excerpt=outcome.excerpt,
        )
        return attempt, outcome.delivered

    def secret(self, webhook: Webhook) -> str:
        """Return the signing secret."""
        return self._open(webhook.secret)

    def hide(self, secret: str) -> str:
        """Return the form in which a secret is stored."""
        return self._seal.encrypt(secret.encode()).decode()

    def _open(self, stored: str) -> str:
        return self._seal.decrypt(stored.encode()).decode()
