"""Slack channels: the incoming webhooks of Slack that receive an organisation's messages about approvals."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Index, delete, select, update

from app.database.columns import upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one


@dataclass(frozen=True, slots=True)
class SlackChannel:
    """One channel. Its URL is encrypted, because anyone who has the URL can post to the channel."""

    channel_id: str
    """The id, derived from the organisation and the name, so that an organisation's channels have distinct names."""
    org: str
    name: str
    host: str
    """Host of the URL."""
    url: str
    """The URL, encrypted."""
    status: str
    """The status: `enabled` or `disabled`."""
    changed_at: int
    """Time of the last change in Unix milliseconds."""


table = table_of("slack_channels", SlackChannel, Index("slack_channels_by_org", "org", "name"), key=["channel_id"])


def slack_channels(connection: Connection, orgs: Collection[str]) -> list[SlackChannel]:
    """Return all channels of these organisations, by name."""
    return fetch_all(connection, SlackChannel, select(table).where(table.c.org.in_(orgs)).order_by(table.c.name))


def slack_channel(connection: Connection, channel_id: str) -> SlackChannel | None:
    """Return the channel with this id, or None."""
    return fetch_one(connection, SlackChannel, select(table).where(table.c.channel_id == channel_id))


def put_slack_channel(connection: Connection, channel: SlackChannel) -> None:
    """Add a channel, or replace its earlier state."""
    upsert(connection, table, columns_of(channel), keys=["channel_id"])


def remove_slack_channel(connection: Connection, channel_id: str) -> None:
    """Delete a channel."""
    connection.execute(delete(table).where(table.c.channel_id == channel_id))


def disable_slack_channel(connection: Connection, channel: SlackChannel, now: int) -> bool:
    """Disable an enabled channel. Return False if it is no longer enabled or has another URL than `channel`."""
    same = (table.c.channel_id == channel.channel_id, table.c.url == channel.url, table.c.status == "enabled")
    return bool(connection.execute(update(table).where(*same).values(status="disabled", changed_at=now)).rowcount)
