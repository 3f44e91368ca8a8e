"""Times: ISO 8601 in UTC for clients, Unix seconds on the chain, Unix milliseconds in the store."""

import re
import time
from datetime import UTC, datetime, timedelta

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
"""One minute, one hour and one day in milliseconds."""
#: 9999-12-31T23:59:59Z, the last second with a four-digit year in ISO 8601.
MAX_SECONDS = 253_402_300_799
_EPOCH = datetime.fromtimestamp(0, UTC)
#: Only the extended form of ISO 8601 is accepted. Python also parses week dates, dates without hyphens and others.
_DATE, _TIME, _OFFSET = r"\d{4}-\d\d-\d\d", r"[Tt ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?", r"\d\d(:?\d\d)?"
_FORM = re.compile(f"{_DATE}({_TIME}([Zz]|[+-]{_OFFSET})?)?", re.ASCII)
#: A timestamp from a query with an unencoded `+` before the offset: the `+` arrives as a space.
_SPACED = re.compile(f"{_DATE}{_TIME} {_OFFSET}", re.ASCII)


class _Clock:
    """The clock of this process: the host's clock plus the lead of an embedded chain's test clock, in seconds.

    `agent-vault clock advance` changes `ahead`. With any other chain, `ahead` stays 0.
    """

    ahead = 0


CLOCK = _Clock()


def now_seconds() -> float:
    """Return the current Unix seconds."""
    return time.time() + CLOCK.ahead


def now_ms() -> int:
    """Return the current Unix milliseconds."""
    return host_ms() + CLOCK.ahead * 1000


def host_ms() -> int:
    """Return the host's Unix milliseconds, without the test clock. Use this for times compared with other machines."""
    return time.time_ns() // 1_000_000


def parse_iso_ms(text: str) -> int:
    """Return the Unix milliseconds of an ISO 8601 timestamp, or of the start of a date. The default offset is UTC.

    Raises ValueError for any other text, and for times outside the years 1970 to 9999. The message states the expected
    form.
    """
    if _SPACED.fullmatch(text):
        raise ValueError("must have a + before its offset; encode the + as %2B in a query")
    try:
        moment = datetime.fromisoformat(text) if _FORM.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError("must be an ISO 8601 timestamp such as 2026-05-01T00:00:00Z")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if not 0 <= milliseconds < (MAX_SECONDS + 1) * 1000:
        raise ValueError("must be in the years 1970 to 9999")
    return milliseconds


def iso(seconds: int) -> str:
    """Return Unix seconds as ISO 8601. A time after the year 9999 is shown as the last second of that year."""
    return datetime.fromtimestamp(min(seconds, MAX_SECONDS), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_ms(milliseconds: int) -> str:
    """Return Unix milliseconds as ISO 8601."""
    seconds, rest = divmod(milliseconds, 1000)
    # Not `strftime`, which is five times slower: most responses contain times.
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03}Z"
