"""Builds, signs and sends deliveries, and keeps the signing secrets encrypted."""

from collections.abc import Callable
from dataclasses import asdict

from cryptography.fernet import Fernet
from pydantic_core import to_json

from app.core.outbound import Lookup, Outbound
from app.core.slots import SlotsByOrg
from app.core.timestamps import CLOCK, iso_ms, now_ms
from app.store.deliveries import DeliveryRecord
from app.store.delivery_attempts import DeliveryAttemptRecord
from app.store.feed import FeedEvent
from app.store.slack_channels import SlackChannel
from app.store.webhooks import WebhookRecord
from app.webhooks._sender import TIMEOUT, send
from app.webhooks._signing import signature_headers
from app.webhooks.urls import UrlRules

PINGS_AT_ONCE = 4
"""Maximum number of pings that one organisation may send from this node at a time, each to a different webhook.

The last slot is for a key or person without another ping.
"""
_TOO_MANY = "Too many pings are being sent to this webhook or to others of the organisation. Retry."


def body_of(event: FeedEvent) -> str:
    """Return the JSON that reports an event: its type, id and time, then the other fields of its payload."""
    named = {"event": event.type, "event_id": event.event_id, "timestamp": iso_ms(event.timestamp)}
    return to_json({**named, **event.payload, **named}).decode()


class DeliveryClient:
    """Sends deliveries to allowed URLs, signed with the webhook's current secrets."""

    def __init__(
        self,
        seal: Fernet,
        rules: UrlRules,
        *,
        lookups: int,
        timeout: float = TIMEOUT,
        lookup: Lookup | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Allow `lookups` name lookups at a time for deliveries, and as many for pings.

        `lookup` replaces the resolver; `clock` gives Unix milliseconds.
        """
        self.rules = rules
        self.clock = clock
        self._seal = seal
        self._timeout = timeout
        # Pings have their own pool of lookups, so that they do not delay deliveries.
        self._for_deliveries, self._for_pings = (
            Outbound(lookup=lookup, allowed=rules.allowed, lookups=lookups, part=part) for part in (4, 8)
        )
        # A webhook gets one ping at a time.
        self._pings, self._pinged = SlotsByOrg(PINGS_AT_ONCE, _TOO_MANY), SlotsByOrg(1, _TOO_MANY)

    def close(self) -> None:
        """Start no further name lookups."""
        self._for_deliveries.close()
        self._for_pings.close()

    async def ping(
        self, webhook: WebhookRecord, delivery: DeliveryRecord, sender: str
    ) -> tuple[DeliveryAttemptRecord, bool]:
        """Send a ping as `attempt` sends a delivery, without delaying deliveries.

        Raises the errors of `attempt`, and ``rate_limited`` while another ping is being sent to the webhook, or while
        the organisation or the `sender` (a key or person) has too many pings running.
        """
        with self._pings.hold(webhook.org, sender), self._pinged.hold(webhook.webhook_id, sender):
            return await self.attempt(webhook, delivery, ping=True)

    async def attempt(
        self, webhook: WebhookRecord, delivery: DeliveryRecord, *, ping: bool = False
    ) -> tuple[DeliveryAttemptRecord, bool]:
        """Send a delivery once. Returns the attempt, and True if the receiver acknowledged.

        Raises ``rate_limited`` if too many names are being looked up.
        """
        started_at = self.clock()
        body = delivery.body.encode()
        keys = [self.secret(webhook)]
        if webhook.old_secret is not None and started_at < (webhook.old_secret_until or 0):
            keys.append(self._open(webhook.old_secret))
        # Receivers compare this time with their own clocks, which no test clock moves.
        sent_at = started_at // 1000 - CLOCK.ahead
        signed = signature_headers(body, message_id=delivery.event_id, timestamp=sent_at, keys=keys)
        outbound = self._for_pings if ping else self._for_deliveries
        owner = (webhook.org, webhook.webhook_id)
        outcome = await send(outbound, webhook.url, body, signed, owner=owner, within=self._timeout)
        number = delivery.attempts + 1
        return DeliveryAttemptRecord(delivery.delivery_id, number, started_at, **asdict(outcome)), outcome.delivered

    async def post(self, channel: SlackChannel, body: str, *, test: bool = False) -> str | None:
        """Post a message once to a Slack channel. Returns the error, or None if Slack accepted the message.

        Raises ``rate_limited`` if too many names are being looked up.
        """
        outbound, owner = self._for_pings if test else self._for_deliveries, (channel.org, channel.channel_id)
        url = self._open(channel.url)
        outcome = await send(outbound, url, body.encode(), {}, owner=owner, within=self._timeout)
        return None if outcome.delivered else outcome.error or f"status {outcome.status_code}"

    async def test(self, channel: SlackChannel, body: str, sender: str) -> str | None:
        """Post a test message as `post` does, within the limits of `ping`."""
        with self._pings.hold(channel.org, sender), self._pinged.hold(channel.channel_id, sender):
            return await self.post(channel, body, test=True)

    def secret(self, webhook: WebhookRecord) -> str:
        """Return a webhook's current signing secret."""
        return self._open(webhook.secret)

    def hide(self, secret: str) -> str:
        """Return the encrypted form of a secret, for the database."""
        return self._seal.encrypt(secret.encode()).decode()

    def _open(self, stored: str) -> str:
        return self._seal.decrypt(stored.encode()).decode()
