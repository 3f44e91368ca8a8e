"""Request and response bodies of the test clock."""

from typing import Annotated

from pydantic import Field

from app.api.fields import ChainTime, ChangeBody, ResponseBody, example
from app.test_clock.service import MOST_AHEAD


class AdvanceClock(ChangeBody):
    """Body of an advance of the test clock."""

    seconds: Annotated[int, Field(ge=1, le=MOST_AHEAD), example(90_000)]
    """The seconds to add to the chain's time. The total is limited to 400 days, which are 34,560,000 seconds."""


class ClockState(ResponseBody):
    """The embedded chain's time after an advance."""

    chain_time: Annotated[ChainTime, example("2026-05-02T10:00:00Z")]
    """The chain's time."""
    ahead_seconds: Annotated[int, example(90_000)]
    """The test clock's lead over the host's clock."""
