"""API keys: made, listed, rotated and revoked by an admin."""

from collections.abc import Callable
from typing import cast

from sqlalchemy import Connection
from starlette.routing import Route

from app.access.auth import ADMINS
from app.access.keyring import Issued, KeyRing, Role, status_of
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.core.timestamps import iso_ms, now_ms
from app.keys.models import CreateKey, Key, KeyPage, ListKeys, NewKey, RotateKey
from app.store.keys import ApiKey, api_key_page, insert_api_key
from app.wallets import service as wallets


@operation(
    tag="keys", roles=ADMINS, body=CreateKey, answer=NewKey, errors=("wallet_not_found",), changes=True, secret=True
)
async def create_key(call: Call, body: CreateKey) -> NewKey:
    """Create an API key.

    The answer is the only one that holds the key; the service keeps a digest of it.
    """
    service, org = call.service, call.principal.org
    if body.wallet_id is not None:
        await wallets.require(service, org, body.wallet_id)
    made = service.part(KeyRing).issue(
        org=org, role=body.role, wallet_id=body.wallet_id, name=body.name or "", live=_live(call)
    )

    def store(conn: Connection) -> Issued:
        insert_api_key(conn, made.record, idempotency_key=call.claim.key)
        return made

    return _new(await _make(call, store))


@operation(tag="keys", roles=ADMINS, query=ListKeys, answer=KeyPage)
async def list_keys(call: Call, query: ListKeys) -> KeyPage:
    """List the API keys.

    Newest first, revoked ones too. `last_used_at` is right to the minute.
    """
    found = await call.service.db.read(
        lambda conn: api_key_page(conn, call.principal.org, limit=query.limit, cursor=query.cursor)
    )
    return KeyPage(data=[_shown(one) for one in found.data], has_more=found.has_more, next_cursor=found.next_cursor)


@operation(
    tag="keys",
    roles=ADMINS,
    body=RotateKey,
    answer=NewKey,
    errors=("key_not_found", "key_not_active"),
    changes=True,
    secret=True,
)
async def rotate_key(call: Call, body: RotateKey) -> NewKey:
    """Rotate an API key.

    Answers a new key with the same role, wallet and name. The old one works on for `overlapSeconds`, by default a day;
    without an overlap the key in use cannot repeat the request should the answer get lost.
    """
    service = call.service
    overlap = service.settings.key_rotation_overlap if body.overlap_seconds is None else body.overlap_seconds

    def store(conn: Connection) -> Issued:
        org, key_id, under = call.principal.org, call.path("key_id"), call.claim.key
        return service.part(KeyRing).rotate(conn, org, key_id, overlap=overlap, live=_live(call), idempotency_key=under)

    made = await _make(call, store)
    service.part(KeyRing).forget()
    return _new(made)


@operation(
    tag="keys", roles=ADMINS, body=EmptyBody, answer=Key, errors=("key_not_found", "key_not_active"), changes=True
)
async def revoke_key(call: Call, _body: EmptyBody) -> Key:
    """Revoke an API key.

    It stops working at once, on other nodes within a second. An admin may revoke the key in use; `agent-vault keys`
    makes another.
    """
    keys, again = call.service.part(KeyRing), call.claim.repeats
    revoked = await call.claim.store(
        lambda conn: keys.revoke(conn, call.principal.org, call.path("key_id"), again=again)
    )
    keys.forget()
    return _shown(revoked)


async def _make(call: Call, store: Callable[[Connection], Issued]) -> Issued:
    """Store a new key; when an earlier run of the request did and could not answer, give that record another key."""
    again, under = call.claim.repeats, call.claim.key

    def made(conn: Connection) -> Issued:
        earlier = None
        if again and under is not None:
            earlier = call.service.part(KeyRing).reissue(conn, call.principal.org, under, live=_live(call))
        return earlier or store(conn)

    return await call.claim.store(made)


def _live(call: Call) -> bool:
    return call.service.settings.cluster == "mainnet-beta"


def _shown(record: ApiKey) -> Key:
    return Key(
        key_id=record.key_id,
        id=record.key_id,
        role=cast(Role, record.role),
        wallet_id=record.wallet_id,
        name=record.name,
        hint=record.hint,
        status=status_of(record, now_ms()),
        created_at=iso_ms(record.created_at),
        last_used_at=None if record.last_used_at is None else iso_ms(record.last_used_at),
        revoked_at=None if record.revoked_at is None else iso_ms(record.revoked_at),
    )


def _new(made: Issued) -> NewKey:
    return NewKey(**_shown(made.record).model_dump(), key=made.key)


routes = [
    Route("/v1/keys", list_keys, methods=["GET"]),
    Route("/v1/keys", create_key, methods=["POST"]),
    Route("/v1/keys/{key_id}/rotate", rotate_key, methods=["POST"]),
    Route("/v1/keys/{key_id}", revoke_key, methods=["DELETE"]),
]
