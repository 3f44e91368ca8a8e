"""Admission to expensive work: one job of a kind at a time in a process, and few jobs per organisation."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.core.errors import RequestError
from app.submission.context import Service
from app.submission.locks import LockScope

_RETRY_AFTER = "2"


class Admission:
    """Queues one kind of expensive work in this process: one job runs at a time.

    An organisation may have `limit` jobs, including the running one. `refusal` is the message of requests beyond the
    limit.
    """

    def __init__(self, name: str, limit: int, refusal: str) -> None:
        self._name = name
        self._limit = limit
        self._refusal = refusal
        self.waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def enter(self, service: Service, org: str) -> AsyncIterator[None]:
        """Wait until the organisation's job may run.

        An organisation's jobs first wait for each other, and only one of them at a time enters the common queue. In
        that queue, a job waits for at most one job of every other organisation. Raises ``rate_limited`` if the
        organisation already has `limit` jobs.
        """
        if self.waiting[org] >= self._limit:
            raise RequestError("rate_limited", self._refusal, headers={"Retry-After": _RETRY_AFTER})
        self.waiting[org] += 1
        try:
            async with (
                service.locks.hold(LockScope.ORG_JOB, f"{self._name}/{org}"),
                service.locks.hold(LockScope.JOB, self._name),
            ):
                yield
        finally:
            self.waiting[org] -= 1
            if not self.waiting[org]:
                del self.waiting[org]
