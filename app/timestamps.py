"""Times at the edge: ISO 8601 in UTC outside, Unix seconds on the chain and milliseconds in the store."""

import time
from datetime import UTC, datetime

#: 9999-12-31T23:59:59Z, the last second that ISO 8601 writes with four digits of the year.
MAX_SECONDS = 253_402_300_799


def now_ms() -> int:
    """Unix milliseconds now."""
    return time.time_ns() // 1_000_000


def parse_iso(text: str) -> int:
    """Unix seconds of an ISO 8601 timestamp; without an offset it is UTC.

    Raises ValueError for anything else, and outside the years 1970 to 9999.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        seconds = int(moment.timestamp())
    except OverflowError:
        raise ValueError("out of range") from None
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError("out of range")
    return seconds


def iso(seconds: int) -> str:
    """ISO 8601 of Unix seconds; what lies after the year 9999 is shown as its end."""
    return datetime.fromtimestamp(min(seconds, MAX_SECONDS), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_ms(milliseconds: int) -> str:
    """ISO 8601 with milliseconds."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"
