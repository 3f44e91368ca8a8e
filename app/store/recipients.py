"""Recipients that the operator registered on the chain, and the domains behind their hashes."""

from dataclasses import dataclass, fields

from sqlalchemy import Connection, String, bindparam, func, or_, select

from app.chain.addresses import domain_hash
from app.core.pages import RecordPage
from app.database.columns import upsert
from app.database.paging import fetch_page, listing, unindexed
from app.database.records import fetch_one
from app.store.read_tables import recipients as table
from app.store.state_tables import domains


@dataclass(frozen=True, slots=True)
class Recipient:
    """A registered address. The domain and the category (a code) take effect at the Unix second `effective_at`.

    `sequence` is the organisation's event number at this registration.
    """

    org: str
    address: str
    domain: str | None
    domain_hash: str | None
    category: int
    effective_at: int
    updated_at: int
    sequence: int


def put_domain(connection: Connection, domain: str) -> None:
    """Store a domain under its hash, before the hash is sent to the chain."""
    values = {"domain_hash": domain_hash(domain).hex(), "domain": domain.lower()}
    upsert(connection, domains, values, keys=["domain_hash"])


def recipient(connection: Connection, org: str, address: str) -> Recipient | None:
    """Return the organisation's recipient with this address, or None."""
    return fetch_one(connection, Recipient, _BY_ADDRESS, {"org": org, "address": address})


def recipient_by_domain(connection: Connection, org: str, domain: str) -> Recipient | None:
    """Return the organisation's most recently registered recipient for a domain, or None."""
    return fetch_one(connection, Recipient, _BY_DOMAIN, {"org": org, "domain_hash": domain_hash(domain).hex()})


def recipients(
    connection: Connection, org: str, *, limit: int = 20, cursor: str | None = None, search: str = ""
) -> RecordPage[Recipient]:
    """Return the organisation's recipients, last changed first. Raises `InvalidCursorError`.

    With `search`, return only those with this address, or with this text in their domain.
    """
    if not search:
        return fetch_page(connection, Recipient, _LISTING, {"org": org}, limit=limit, cursor=cursor)
    given = {"org": org, "search": search, "part": search.lower()}
    return fetch_page(connection, Recipient, _SEARCH, given, limit=limit, cursor=cursor)


# Built once: building a statement takes longer than executing it.
_RECIPIENTS = (
    select(domains.c.domain, *(table.c[field.name] for field in fields(Recipient) if field.name != "domain"))
    .outerjoin(domains, domains.c.domain_hash == table.c.domain_hash)
    .where(table.c.org == bindparam("org"))
)
_BY_ADDRESS = _RECIPIENTS.where(table.c.address == bindparam("address"))
_BY_DOMAIN = (
    _RECIPIENTS.where(table.c.domain_hash == bindparam("domain_hash")).order_by(table.c.sequence.desc()).limit(1)
)
_LISTING = listing(_RECIPIENTS, time=table.c.updated_at, key=table.c.address)
_FOUND = or_(
    unindexed(table.c.address) == bindparam("search"),
    func.replace(domains.c.domain, bindparam("part", type_=String), "") != domains.c.domain,
)
_SEARCH = listing(_RECIPIENTS.where(_FOUND), time=table.c.updated_at, key=table.c.address)
