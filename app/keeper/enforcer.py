"""Continues freezes and pauses if their requests ended before the chain confirmed them."""

from typing import ClassVar

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ApiError
from app.organisations import pausing
from app.submission.brake import EngagedBrake
from app.submission.context import Service
from app.submission.enforcement import resume_enforcement
from app.wallets import freezing


class BrakeEnforcer(Periodic):
    """Enforces brakes that are still engaged after their requests have ended.

    Looks for them at the start and every `interval` seconds. The first node that finds a dead node's brakes takes them
    over.
    """

    name = "enforcer"
    outages: ClassVar[tuple[type[Exception], ...]] = (ApiError, ChainUnavailable, RpcError)

    def __init__(self, service: Service, *, interval: float = 1.0) -> None:
        super().__init__(interval)
        self._service = service

    async def tick(self) -> int:
        """Try once to enforce each brake without a request. Returns the number of these brakes.

        Raises the first error, but only after every brake has been tried.
        """
        if self._service.db.node:
            await self._service.brake.take_over_orphans()
        holds = self._service.brake.without_request()
        failure: Exception | None = None
        for hold in holds:
            try:
                await self._enforce(hold)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
        return len(holds)

    async def _enforce(self, hold: EngagedBrake) -> None:
        if hold.row.kind == "session":
            # The token rotation has ended, but it could not delete the brake's row.
            await self._service.brake.lift(hold)
            return
        how = freezing if hold.row.kind == "freeze" else pausing
        await resume_enforcement(self._service, hold, how.enforcement(self._service, hold))
