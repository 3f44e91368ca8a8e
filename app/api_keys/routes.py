"""Operations on API keys, for admins: create, list, rotate and revoke."""

from app.access.auth import ADMINS
from app.api.ending import EndCredential
from app.api.operation import Call, operation
from app.api_keys import service as keys
from app.api_keys.models import (
    CreateKey,
    KeyPage,
    ListKeys,
    ListRequests,
    NewKey,
    RequestLogPage,
    RevokedKey,
    RotateKey,
)

_CHANGING = ("key_not_found", "key_not_active")


@operation("POST /v1/keys", roles=ADMINS, errors=("wallet_not_found",), secret=True)
async def create_key(call: Call, body: CreateKey) -> NewKey:
    """Create an API key.

    With `expiresAt`, the key stops working at that time. With `allowedAddresses`, the key works only from these
    networks. From other addresses, keys of operators and admins may still freeze wallets and pause the organisation.
    Each use from outside sends the event `key.used_outside`, at most once an hour for each network.

    Only this response, and its replays under the same idempotency key, contain the key. The service stores a digest
    of the key and its last four characters. For replays, it stores the response encrypted under the requesting API key.
    """
    return await keys.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/keys", roles=ADMINS)
async def list_keys(call: Call, query: ListKeys) -> KeyPage:
    """List the API keys.

    The newest key comes first, and revoked keys are included. `last_used_at` is updated once a minute, unless the
    service is configured with a different interval.
    """
    return await keys.page(call.service, call.principal, query)


@operation("POST /v1/keys/{key_id}/rotate", roles=ADMINS, errors=(*_CHANGING, "last_admin_key"), secret=True)
async def rotate_key(call: Call, body: RotateKey) -> NewKey:
    """Rotate an API key.

    Returns a new key with the same role, wallet and name. The end and the allowed addresses also stay the same, unless
    the body changes them. The old key works for `overlapSeconds` more, or for the service's default overlap if the
    field is absent. With an overlap of 0, the old key stops working immediately, and on other nodes within a second by
    default. If a key rotates itself without an overlap and the response is lost, the request cannot be repeated.
    """
    return await keys.rotate(call.service, call.principal, call.claim, call.path("key_id"), body)


@operation("DELETE /v1/keys/{key_id}", roles=ADMINS, errors=(*_CHANGING, "last_admin_key"))
async def revoke_key(call: Call, body: EndCredential) -> RevokedKey:
    """Revoke an API key.

    The key stops working immediately, and on other nodes within a second by default. An admin may revoke the key that
    sends this request, unless it is the organisation's last admin key.

    The key's sessions and download links end. The response lists the keys and people that the key created, directly or
    through others. With `endDescendants` = `true`, the request also ends these descendants, even if the key itself has
    already ended. Keys that replaced each other in rotations count as one key. The request never ends its own caller,
    nor the caller's descendants.
    """
    return await keys.revoke(call.service, call.principal, call.claim, call.path("key_id"), body)


@operation("GET /v1/request-log", tag="keys", roles=ADMINS)
async def list_requests(call: Call, query: ListRequests) -> RequestLogPage:
    """List the requests of the last 24 hours.

    Lists requests under `/v1` that had a valid API key, newest first, with the status and error code of each response.
    A request appears about a second after its response. Only the newest requests of the organisation are kept; the
    guide "Limits and figures" states their number.
    """
    return await keys.requests(call.service, call.principal, query)
