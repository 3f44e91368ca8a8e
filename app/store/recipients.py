"""Recipients: what the operator registered on the chain, and the domains behind the hashes."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select

from app.chain.addresses import domain_hash
from app.store.columns import upsert
from app.store.paging import RecordPage, fetch_page, listing
from app.store.read_tables import recipients as table
from app.store.state_tables import domains


@dataclass(frozen=True, slots=True)
class Recipient:
    """A registered address: its domain, if any, its category's code, and the Unix second from which both count."""

    org: str
    address: str
    domain: str | None
    domain_hash: str | None
    category: int
    effective_at: int
    updated_at: int


def put_domain(connection: Connection, domain: str) -> None:
    """Remember the text behind a domain's hash, before the hash is sent."""
    values = {"domain_hash": domain_hash(domain).hex(), "domain": domain.lower()}
    upsert(connection, domains, values, keys=["domain_hash"])


def recipient(connection: Connection, org: str, address: str) -> Recipient | None:
    """Return what the organisation registered about an address."""
    return _one(connection, _BY_ADDRESS, {"org": org, "address": address})


def recipient_by_domain(connection: Connection, org: str, domain: str) -> Recipient | None:
    """Return the address that the organisation registered last for a domain."""
    return _one(connection, _BY_DOMAIN, {"org": org, "domain_hash": domain_hash(domain).hex()})


def recipients(
    connection: Connection, org: str, *, limit: int = 20, cursor: str | None = None
) -> RecordPage[Recipient]:
    """Return the organisation's recipients, the last changed first. Raises `InvalidCursorError`."""
    rows, more, following = fetch_page(connection, _LISTING, {"org": org}, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


# Built once: to build a statement takes longer than to execute it.
_RECIPIENTS = (
    select(table, domains.c.domain)
    .outerjoin(domains, domains.c.domain_hash == table.c.domain_hash)
    .where(table.c.org == bindparam("org"))
)
_BY_ADDRESS = _RECIPIENTS.where(table.c.address == bindparam("address"))
_BY_DOMAIN = (
    _RECIPIENTS.where(table.c.domain_hash == bindparam("domain_hash")).order_by(table.c.sequence.desc()).limit(1)
)
_LISTING = listing(_RECIPIENTS, time=table.c.updated_at, key=table.c.address)


def _one(connection: Connection, query: Select[Any], parameters: dict[str, str]) -> Recipient | None:
    row = connection.execute(query, parameters).one_or_none()
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> Recipient:
    return Recipient(row.org, row.address, row.domain, row.domain_hash, row.category, row.effective_at, row.updated_at)
