"""Slack channels: their use cases, and the job that posts the queued messages."""

from typing import ClassVar
from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.alerts.mailer import Mailer
from app.alerts.slack_format import slack_message
from app.core.actors import Actor
from app.core.errors import BusinessError, NotFoundError, RequestError
from app.core.identifiers import derived_id
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.database.interface import Database
from app.store.alert_mails import Mail, record_failure, reschedule
from app.store.approval_events import shown_actor
from app.store.audit import append
from app.store.deliveries import retry_at
from app.store.feed import report_once
from app.store.slack_channels import (
    SlackChannel,
    disable_slack_channel,
    put_slack_channel,
    remove_slack_channel,
    slack_channel,
    slack_channels,
)
from app.submission.context import Service
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.models import SaveSlackChannel

MAX_CHANNELS = 5
"""Maximum number of Slack channels of one organisation."""
_REFUSED = "status 400"
"""The outcome of a message that Slack refuses because of its content, and not because of the channel."""
_REVOKED = {"status 403", "status 404", "status 410"}
"""The outcomes of a message if its channel was archived, or its URL was revoked."""


async def save(service: Service, principal: Principal, body: SaveSlackChannel) -> None:
    """Add a channel, or replace the URL of the channel with this name and enable it.

    Raises ``invalid_request`` for a URL that is not allowed, and if the organisation has too many channels.
    """
    client, org, now = service.part(DeliveryClient), principal.org, now_ms()
    client.rules.check(body.url)
    host, channel_id = urlsplit(body.url).hostname or "", derived_id("slk_", org, body.name)
    made = SlackChannel(channel_id, org, body.name, host, client.hide(body.url), "enabled", now)

    def store(conn: Connection) -> None:
        known = slack_channel(conn, channel_id)
        if known is None and len(slack_channels(conn, [org])) >= MAX_CHANNELS:
            raise BusinessError("invalid_request", f"An organisation may have at most {MAX_CHANNELS} Slack channels.")
        put_slack_channel(conn, made)
        append(conn, principal.entry("slack.save", channel_id, name=made.name, host=host))
        _report(conn, made, "added" if known is None else "replaced", principal.actor, now)

    await service.db.write(store)


async def remove(service: Service, principal: Principal, channel_id: str) -> None:
    """Remove a channel with its queued messages. Raises ``not_found``."""

    def store(conn: Connection) -> None:
        found = _find(conn, principal.org, channel_id)
        remove_slack_channel(conn, channel_id)
        reschedule(conn, channel_id, None)
        append(conn, principal.entry("slack.remove", channel_id, name=found.name, host=found.host))
        _report(conn, found, "removed", principal.actor, now_ms())

    await service.db.write(store)


async def test(service: Service, principal: Principal, channel_id: str) -> None:
    """Send a test message once, without queueing it.

    Raises ``not_found``, ``invalid_request`` with the reason if the message was not delivered, and ``rate_limited``
    like a ping.
    """
    found = await service.db.read(lambda conn: _find(conn, principal.org, channel_id))
    body = slack_message("Test", "This channel receives the messages about approvals.", {})
    error = await service.part(DeliveryClient).test(found, body, principal.key_id)
    await service.db.write(lambda conn: append(conn, principal.entry("slack.test", channel_id, error=error)))
    if error is not None:
        raise BusinessError("invalid_request", f"The test message was not delivered: {error.replace('_', ' ')}.")


def _find(conn: Connection, org: str, channel_id: str) -> SlackChannel:
    found = slack_channel(conn, channel_id)
    if found is None or found.org != org:
        raise NotFoundError("not_found", "The organisation has no such Slack channel.")
    return found


def _report(conn: Connection, channel: SlackChannel, change: str, actor: Actor, now: int) -> None:
    about = {"channel_id": channel.channel_id, "name": channel.name, "host": channel.host, "change": change}
    says, key = f"Slack channel {channel.name} {change}", (channel.channel_id, change, str(now))
    report_once(conn, "slack.changed", channel.org, now, *key, summary=says, **about, actor=shown_actor(actor))


class SlackSender(Mailer):
    """Posts the due messages to Slack channels. The queue and the retries work as for the alerts' e-mails.

    A failed attempt postpones all messages of its channel. The channel is disabled if its URL was revoked, or after the
    last failed attempt at a message. Only a message that Slack refuses for its content is dropped alone.
    """

    name = "slack_messages"
    slack: ClassVar[bool] = True
    at_once: ClassVar[int] = 16

    def __init__(self, db: Database, settings: Settings, delivery_client: DeliveryClient) -> None:
        super().__init__(db, settings, clock=delivery_client.clock)
        self._courier = delivery_client

    def _fail(self, conn: Connection, mail: Mail, error: str, now: int) -> bool:
        last = record_failure(conn, mail, now, last=error == _REFUSED or error in _REVOKED)
        if error != _REFUSED:
            # A slow channel must not delay others.
            reschedule(conn, mail.recipient, None if last else retry_at(mail.attempts + 1, now))
            channel = slack_channel(conn, mail.recipient)
            if last and channel is not None and disable_slack_channel(conn, channel, now):
                _report(conn, channel, "disabled", Actor("system", self.name), now)
        return last

    async def _send(self, mail: Mail) -> str | None:
        channel = await self._db.read(lambda conn: slack_channel(conn, mail.recipient))
        if channel is None or channel.status != "enabled":
            return "status 410"
        try:
            return await self._courier.post(channel, mail.body)
        except RequestError as error:
            return error.code
