"""Advances the test clock of the embedded chain, after a copy of the databases for `agent-vault clock reset`."""

import asyncio
import shutil

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import BusinessError
from app.core.paths import Paths
from app.core.timestamps import CLOCK, now_seconds
from app.database.sqlite import copy_database
from app.localnet import Localnet
from app.store.audit import append
from app.store.values import clock_ahead, put_clock_ahead
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope

MOST_AHEAD = 400 * 24 * 60 * 60
"""Maximum lead of the test clock over the host's clock, in seconds."""


async def advance(service: Service, principal: Principal, claim: Claim, seconds: int) -> tuple[int, int]:
    """Move the clock of the chain and of this process forward. Return the chain's time and the total, both in seconds.

    The first advance copies the databases. Raises ``test_clock_refused`` if the chain is not embedded in this process
    or has several organisations, if the service's state is on a database server, or if the total exceeds
    ``MOST_AHEAD``.
    """
    await _require_own_chain(service)

    def add(conn: Connection) -> None:
        total = clock_ahead(conn) + seconds
        if total > MOST_AHEAD:
            left = MOST_AHEAD - clock_ahead(conn)
            raise BusinessError("test_clock_refused", f"The clock can be advanced by at most {left} more seconds.")
        put_clock_ahead(conn, total)
        append(conn, principal.entry("clock.advance", seconds=seconds, ahead_seconds=total))

    async with service.locks.hold(LockScope.ORG_STATE, principal.org):
        if not CLOCK.ahead:
            await asyncio.to_thread(_copy, service.settings.paths())
        await claim.store_once(add)
        CLOCK.ahead = await service.db.read(clock_ahead)
        return await service.clock.read(), CLOCK.ahead


async def _require_own_chain(service: Service) -> None:
    localnet = service.parts.get(Localnet)
    chain = localnet.chain if isinstance(localnet, Localnet) else None
    if chain is None or chain.timeline.clock is not now_seconds or service.settings.database_url is not None:
        raise BusinessError("test_clock_refused")
    found = chain.storage.accounts_of_program(service.codec.program_id, "", ())
    if sum(service.codec.decode_account(account.data).name == "Org" for _, account in found) > 1:
        raise BusinessError(
            "test_clock_refused",
            "The chain has several organisations, and the clock would move for all of them. Start another service with "
            "a new data folder.",
        )


def _copy(paths: Paths) -> None:
    """Copy the databases. An incomplete copy never has the final name."""
    draft = paths.before_clock.with_name(f"new-{paths.before_clock.name}")
    for folder in (draft, paths.before_clock):
        shutil.rmtree(folder, ignore_errors=True)
    draft.mkdir(mode=0o700)
    for source in paths.databases:
        copy_database(source, draft / source.name)
    draft.rename(paths.before_clock)
