"""Distinguishes what does not exist from what may: its creation was sent and has no outcome.

A creation that was rolled back is pending again, so what the service has shown before is not denied meanwhile: who
believed the 404 might make it a second time.
"""

from collections.abc import Callable

from app.core.errors import ApiError, UnavailableError
from app.store.attempts import Attempt, pending_changes
from app.submission.context import Service


async def absent(
    service: Service, org: str, kind: str, where: Callable[[Attempt], bool], otherwise: ApiError
) -> ApiError:
    """Return ``chain_unavailable`` while a creation of this type, selected by ``where``, is pending, else the error."""
    for attempt in await service.db.read(lambda conn: pending_changes(conn, org, {kind})):
        if where(attempt):
            return UnavailableError(
                "chain_unavailable",
                "Its creation was sent to the chain and is not confirmed yet. Repeat the request a little later.",
                fields={"tx_id": attempt.tx_id},
            )
    return otherwise
