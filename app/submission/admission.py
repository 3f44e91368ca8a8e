"""Turns: what takes long is done for one request at a time, and of an organisation only few may wait."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.core.errors import RequestError
from app.submission.context import Service

_RETRY_AFTER = "2"


class Turns:
    """The line for one kind of work, of which `most` are asked for at once by an organisation.

    `name` is the line's, `refusal` what is told of more.
    """

    def __init__(self, name: str, most: int, refusal: str) -> None:
        self._name = name
        self._most = most
        self._refusal = refusal
        self.asked: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, service: Service, org: str) -> AsyncIterator[None]:
        """Wait for the organisation's turn, and have it. Raises ``rate_limited`` when too many wait.

        There is one turn at a time, for each takes a processor. Of every organisation only one stands in the line for
        that, so nobody waits for more than one of each other's.
        """
        if self.asked[org] >= self._most:
            raise RequestError("rate_limited", self._refusal, headers={"Retry-After": _RETRY_AFTER})
        self.asked[org] += 1
        try:
            async with service.submitter.lock(f"{self._name}/{org}"), service.submitter.lock(self._name):
                yield
        finally:
            self.asked[org] -= 1
            if not self.asked[org]:
                del self.asked[org]
