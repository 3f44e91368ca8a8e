"""The operation of the test clock."""

from app.access.auth import ADMINS
from app.api.operation import Call, operation
from app.test_clock import service as test_clock
from app.test_clock.models import AdvanceClock, ClockState


@operation("POST /v1/test/clock", tag="testing", roles=ADMINS, errors=("test_clock_refused",))
async def advance_clock(call: Call, body: AdvanceClock) -> ClockState:
    """Advance the test clock of the embedded chain.

    For tests on the embedded chain only. The chain's time moves forward at once, and so do the service's own times:
    spending windows, expiries, deadlines, idempotency keys and daily quotas. On any other chain, and on an embedded
    chain with several organisations, the response is `422 test_clock_refused`. Only `agent-vault clock reset` on the
    host moves the clock back.
    """
    chain_time, ahead = await test_clock.advance(call.service, call.principal, call.claim, body.seconds)
    return ClockState.model_validate({"chain_time": chain_time, "ahead_seconds": ahead})
