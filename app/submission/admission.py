"""Admission to expensive work: one job of a kind at a time in a process, and few jobs per organisation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.access.keyring import Principal
from app.core.slots import SlotsByOrg
from app.submission.context import Service
from app.submission.locks import LockScope


class Admission:
    """Queues one kind of expensive work in this process: one job runs at a time.

    An organisation may have `limit` jobs, including the running one. The last quarter of these places is reserved for
    API keys and people that have no job yet. `refusal` is the message of requests beyond the limit.
    """

    def __init__(self, name: str, limit: int, refusal: str) -> None:
        self._name = name
        self.waiting = SlotsByOrg(limit, refusal)

    @asynccontextmanager
    async def enter(self, service: Service, principal: Principal) -> AsyncIterator[None]:
        """Wait until the principal's job may run.

        An organisation's jobs first wait for each other, and only one of them at a time enters the common queue. In
        that queue, a job waits for at most one job of every other organisation. Raises ``rate_limited`` if the
        organisation already has `limit` jobs.
        """
        with self.waiting.hold(principal.org, principal.key_id):
            async with (
                service.locks.hold(LockScope.ORG_JOB, f"{self._name}/{principal.org}"),
                service.locks.hold(LockScope.JOB, self._name),
            ):
                yield
