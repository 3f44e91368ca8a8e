"""Reports issued and ended credentials: an audit log entry together with an event."""

from typing import Any

from sqlalchemy import Connection

from app.core.identifiers import EVENT_PREFIX, derived_id, random_id
from app.core.timestamps import DAY, iso_ms
from app.store.audit import NewLogEntry, append
from app.store.feed import append_event
from app.store.keys import FIRST_NOTICE, ApiKey, expiring_keys
from app.store.people import Person

#: Days before a key's expiry at which a notice is sent; the last notice comes first.
_NOTICES = (1, FIRST_NOTICE)
#: Milliseconds within which a key causes at most one event about uses from one network outside its allowed addresses.
_OUTSIDE_MS = 3_600_000


def report(conn: Connection, entry: NewLogEntry, event: str, about: ApiKey | Person, **fields: Any) -> None:
    """Append an audit log entry and the event about the same key or person."""
    append(conn, entry)
    fields["actor"] = {"type": entry.actor.type, "id": entry.actor.id}
    _append(conn, event, about, random_id(EVENT_PREFIX), entry.timestamp, **fields)


def report_expiries(conn: Connection, now: int) -> None:
    """Append the event `key.expiring` 14 days and 1 day before each key expires, unless the key was created later."""
    for key in expiring_keys(conn, now):
        assert key.expires_at is not None
        due = max(due for days in _NOTICES if (due := key.expires_at - days * DAY) <= now)
        if key.created_at < due:
            event_id = derived_id(EVENT_PREFIX, key.key_id, "key.expiring", str(due))
            _append(conn, "key.expiring", key, event_id, now, expires_at=iso_ms(key.expires_at))


def report_outside(conn: Connection, key: ApiKey, address: str | None, network: str, now: int) -> None:
    """Append the event `key.used_outside`, at most once an hour for each key and network."""
    event_id = derived_id(EVENT_PREFIX, key.key_id, "key.used_outside", network, str(now // _OUTSIDE_MS))
    _append(conn, "key.used_outside", key, event_id, now, address=address)


def _append(conn: Connection, event: str, about: ApiKey | Person, event_id: str, now: int, **fields: Any) -> None:
    payload = {"role": about.role, "name": about.name, **fields}
    if isinstance(about, ApiKey):
        payload |= {"key_id": about.key_id, "bound_wallet_id": about.wallet_id}
        summary = f"API key {about.name or about.key_id}"
    else:
        payload |= {"person_id": about.person_id}
        summary = about.name
    # The event has no `wallet_id`. Agents therefore cannot read it, and only the organisation's rules apply to its
    # e-mails.
    append_event(conn, event_id=event_id, org=about.org, type=event, timestamp=now, summary=summary, payload=payload)
