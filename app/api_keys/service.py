"""API keys: creates, lists, rotates and revokes them for admins."""

from collections.abc import Callable

from sqlalchemy import Connection

from app.access.credentials import descendants, end_all
from app.access.keyring import IssuedKey, KeyRing, KeyTerms, Principal
from app.api.ending import Descendant, EndCredential
from app.api_keys.models import (
    CreateKey,
    Key,
    KeyPage,
    ListKeys,
    ListRequests,
    LoggedRequest,
    NewKey,
    RequestLogPage,
    RevokedKey,
    RotateKey,
)
from app.core.actors import Actor
from app.core.timestamps import now_ms
from app.store.keys import api_key_page, key_names
from app.store.request_log import KEPT_MS, Refusals, refusals, request_page
from app.store.stopped_payments import REASONS
from app.submission.claim import Claim
from app.submission.context import Service
from app.wallets import service as wallets

_ALONE = EndCredential()


async def create(service: Service, principal: Principal, claim: Claim, body: CreateKey) -> NewKey:
    """Create a key. Raises ``wallet_not_found`` and the errors of ``KeyRing.make``."""
    org, ring = principal.org, service.part(KeyRing)
    if body.wallet_id is not None:
        await wallets.require(service, org, body.wallet_id)

    def issue(conn: Connection) -> IssuedKey:
        named = {"live": _is_live(service), "idempotency_key": claim.key, **body.restrictions}
        return ring.make(conn, principal, KeyTerms(body.role, body.wallet_id, body.name or "", **named))

    return await _issue(service, principal, claim, issue)


async def page(service: Service, principal: Principal, query: ListKeys) -> KeyPage:
    """Return one page of the organisation's keys, newest first."""
    org = principal.org
    unrestricted_at = None if query.restricted is None else now_ms()
    found = await service.db.read(
        lambda conn: api_key_page(conn, org, unrestricted_at, limit=query.limit, cursor=query.cursor)
    )
    return KeyPage.showing(found, Key.of)


async def rotate(service: Service, principal: Principal, claim: Claim, key_id: str, body: RotateKey) -> NewKey:
    """Issue a key with the role, wallet and name of an old key, which still works during the overlap.

    Raises the errors of ``KeyRing.rotate``.
    """
    ring = service.part(KeyRing)
    overlap = service.settings.key_rotation_overlap if body.overlap_seconds is None else body.overlap_seconds

    def rotated(conn: Connection) -> IssuedKey:
        changes = {"live": _is_live(service), "idempotency_key": claim.key, **body.restrictions}
        return ring.rotate(conn, principal, key_id, overlap=overlap, **changes)

    new = await _issue(service, principal, claim, rotated)
    ring.forget()
    return new


async def revoke(
    service: Service, principal: Principal, claim: Claim, key_id: str, body: EndCredential = _ALONE
) -> RevokedKey:
    """Revoke a key immediately. If the body requests it, also end the key's descendants, even those of an ended key.

    Raises the errors of ``KeyRing.revoke`` and of ``end_all``.
    """
    ring, now, actor = service.part(KeyRing), now_ms(), Actor("key", key_id)
    again = claim.repeats or body.end_descendants

    def work(conn: Connection) -> RevokedKey:
        revoked, below = ring.revoke(conn, principal, key_id, again=again), descendants(conn, principal, actor, now)
        if body.end_descendants:
            end_all(conn, ring, principal, below, now)
        shown = [Descendant.showing(one) for one in below]
        return RevokedKey.of(revoked, descendants=shown)

    shown = await claim.store(work)
    ring.forget()
    return shown


async def requests(service: Service, principal: Principal, query: ListRequests) -> RequestLogPage:
    """Return one page of the requests that the organisation's keys made in the last day, newest first."""
    wanted = query.model_dump(include={"key_id", "status", "code", "wallet_id"}, exclude_none=True)

    def read(conn: Connection) -> RequestLogPage:
        found = request_page(conn, principal.org, wanted, limit=query.limit, cursor=query.cursor)
        names = key_names(conn, principal.org, {one.key_id for one in found.data})
        return RequestLogPage.showing(found, lambda one: LoggedRequest.of(one, key_name=names.get(one.key_id, "")))

    return await service.db.read(read, in_thread=True)


async def stopped(service: Service, org: str, wallet_id: str) -> Refusals:
    """Return the number of a wallet's requests refused in the last day without a transaction, and the last one's time.

    They were refused because the wallet was frozen, its balance too low or the organisation paused.
    """
    since = now_ms() - KEPT_MS
    return await service.db.read(lambda conn: refusals(conn, org, wallet_id, REASONS, since))


async def _issue(
    service: Service, principal: Principal, claim: Claim, issue: Callable[[Connection], IssuedKey]
) -> NewKey:
    """Store a new key. If an earlier run of the request stored a key but sent no response, replace that key's text."""
    ring = service.part(KeyRing)

    def store(conn: Connection) -> IssuedKey:
        live = _is_live(service)
        return claim.earlier_in(conn, lambda conn, key: ring.reissue(conn, principal, key, live=live)) or issue(conn)

    issued = await claim.store(store)
    return NewKey.of(issued.record, key=issued.key)


def _is_live(service: Service) -> bool:
    return service.identity.cluster == "mainnet-beta"
