"""Reads an organisation's events from the feed and returns them in the API's form."""

from app.access.keyring import Principal
from app.events.models import Event, EventPage, ListEvents
from app.store.feed import FeedEvent, FeedFilter, feed
from app.submission.context import Service
from app.wallets import service as wallets


async def page(service: Service, principal: Principal, query: ListEvents) -> EventPage:
    """Return one page of events, newest first. An agent sees only events of its wallet.

    Raises ``wallet_not_found`` if the query names a wallet that the organisation does not have.
    """
    if query.wallet_id is not None:
        await wallets.require(service, principal.org, query.wallet_id)
    chosen = FeedFilter(
        types=query.type or query.event,
        wallet_id=query.wallet_id or principal.wallet_id,
        severity=query.severity,
        start=query.from_,
        end=query.to,
    )
    found = await service.db.read(
        lambda conn: feed(conn, principal.org, chosen, limit=query.limit, cursor=query.cursor)
    )
    return EventPage.showing(found, _shown)


async def newest(service: Service, org: str, wallet_id: str, types: list[str], limit: int) -> list[Event]:
    """Return a wallet's newest events of these types. The caller must have found the wallet in the organisation."""
    chosen = FeedFilter(types=types, wallet_id=wallet_id)
    return [_shown(one) for one in (await service.db.read(lambda conn: feed(conn, org, chosen, limit=limit))).data]


def _shown(found: FeedEvent) -> Event:
    shown = {name: getattr(found, name) for name in ("event_id", "severity", "summary", "timestamp")}
    return Event.model_validate({**found.payload, "event": found.type, **shown})
