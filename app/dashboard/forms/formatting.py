"""Formats amounts, times, addresses and codes in the same way on all pages."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from urllib.parse import urlsplit

from markupsafe import Markup

from app.core.money import format_usdc, with_separators
from app.core.timestamps import iso_ms, now_ms, parse_iso_ms

#: Text, which templates escape, or markup, which they do not escape.
Words = str | Markup
_SHOWN_OF_ADDRESS = 4
_LONG = 14
_SECONDS = "%Y-%m-%d %H:%M:%S"
_UNITS = ((60_000, 1_000, "sec"), (3_600_000, 60_000, "min"), (86_400_000, 3_600_000, "hr"))
"""Units of elapsed times: the first duration that is too long for the unit, the unit's length, and its name."""

LABELS: Mapping[str, str] = {
    "name": "Name",
    "max_per_tx": "Per payment",
    "max_per_day": "In 24 hours",
    "max_per_month": "Per month",
    "velocity_cap": "Payments an hour",
    "max_total": "In total",
    "expires_at": "Ends",
    "allowed_recipients": "Recipients",
    "blocked_categories": "Blocked categories",
    "require_co_sign": "Approval above",
    "new_recipient_cap": "New recipients",
    "approvals": "Approvals by people",
    "expiry": "Ends",
    "max_open_escrows": "Open escrows",
    "allow_allowances": "Allowances",
    "x402_hosts": "Paid requests",
    "opens_accounts": "Accounts of payees",
}
"""Labels of the fields of policies and budgets on pages."""
_OF_BUDGET = "budget_"
_WORDS: Mapping[str, str] = {"nft": "NFT", "alcohol_tobacco": "Alcohol and tobacco"}
"""Words for codes with an acronym or a missing conjunction."""

# The first match counts: most browsers also name the browsers and systems that they descend from.
_BROWSERS = (
    *(("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("FxiOS/", "Firefox"), ("CriOS/", "Chrome")),
    *(("Chrome/", "Chrome"), ("Safari/", "Safari")),
)
_SYSTEMS = (
    *(("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("CrOS", "ChromeOS")),
    *(("Windows", "Windows"), ("Mac OS X", "macOS"), ("Linux", "Linux")),
)


def usdc(amount: int | str | None) -> str:
    """Return an amount with thousands separators and at least two decimals, or `-` for None.

    ``amount`` is a decimal text in USDC, or a number in micro-USDC.
    """
    if amount is None:
        return "-"
    return with_separators(amount if isinstance(amount, str) else format_usdc(amount))


def moment(value: int | str | None, shape: str = "", *, exact: bool = False) -> Markup | str:
    """Return a time as a `<time>` element. ``value`` is in Unix milliseconds or ISO 8601; for None, returns `-`.

    A time of the last or next 24 hours is shown as elapsed time, such as `5 min ago`, others as `25 Nov, 09:34`, or as
    `25 Nov 2025` in another year. A script in the page shows them in the reader's time zone. The title has the exact
    time. ``exact`` shows all digits, and the ``shape`` `clock` the time of day.
    """
    if value is None:
        return "-"
    milliseconds = parse_iso_ms(value) if isinstance(value, str) else value
    machine = iso_ms(milliseconds)
    at = datetime.fromtimestamp(milliseconds // 1000, UTC)
    precise = f"{at:{_SECONDS}}.{milliseconds % 1000:03}"
    shown, kind = (precise, "ms") if exact else (f"{at:%H:%M}", shape) if shape else (_relative(milliseconds), "near")
    return Markup('<time datetime="{}" title="{} UTC" data-{}>{}</time>').format(machine, precise, kind, shown)


def _relative(milliseconds: int) -> str:
    passed = now_ms() - milliseconds
    for bound, length, unit in _UNITS:
        if (size := abs(passed)) < bound:
            return f"{size // length} {unit} ago" if passed >= 0 else f"in {size // length} {unit}"
    at, now = (datetime.fromtimestamp(one // 1000, UTC) for one in (milliseconds, now_ms()))
    return f"{at.day} {at:%b, %H:%M}" if at.year == now.year else f"{at.day} {at:%b %Y}"


def day(value: str) -> str:
    """Return the day of an ISO 8601 time, such as `Friday 27 November 2026`."""
    shown = date.fromisoformat(value[:10])
    return f"{shown:%A} {shown.day} {shown:%B %Y}"


def span(milliseconds: int) -> str:
    """Return a duration in its two largest units: `23 h 59 min`, `2 days 4 h`."""
    minutes = max(0, milliseconds) // 60_000
    days, hours, minutes = minutes // 1_440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else "less than a minute"


def short(address: str | None) -> Markup | str:
    """Return an address without its middle, and with the full address in the title. Short texts are not changed."""
    if not address:
        return "-"
    if len(address) <= _LONG or "." in address:
        return address
    ends = f"{address[:_SHOWN_OF_ADDRESS]}…{address[-_SHOWN_OF_ADDRESS:]}"
    return Markup('<span class="mono" title="{}">{}</span>').format(address, ends)


def words(code: str) -> str:
    """Return a code of the API in words: `policy_violation` as `Policy violation`."""
    return _WORDS.get(code) or code.replace("_", " ").replace(".", ": ").capitalize()


def rule(code: str) -> str:
    """Return a rule's name as labelled in the form that sets it: `max_per_tx` as `Per payment`."""
    own = code.removeprefix(_OF_BUDGET)
    label = LABELS.get(own) or words(own)
    return f"Budget {label[0].lower()}{label[1:]}" if code.startswith(_OF_BUDGET) else label


def status(code: str) -> str:
    """Return a status in words. `policy_violation` becomes `Refused recently`, because such a vault still pays."""
    return {"policy_violation": "Refused recently", "blocked": "Refused"}.get(code) or words(code)


def entries(text: str) -> list[str]:
    """Return the entries typed into a field, separated by spaces, line breaks, commas or semicolons."""
    return [one for one in re.split(r"[\s,;]+", text) if one]


def device(user_agent: str) -> str:
    """Return browser and system of a User-Agent header, such as `Chrome on macOS`."""
    browser, system = (
        next((name for part, name in known if part in user_agent), "") for known in (_BROWSERS, _SYSTEMS)
    )
    return f"{browser or 'Unknown browser'} on {system}" if system else browser or "Unknown browser"


def host(url: str) -> str:
    """Return the host of an explorer's link."""
    return urlsplit(url).hostname or url


FILTERS = {
    "day": day,
    "device": device,
    "host": host,
    "usdc": usdc,
    "moment": moment,
    "rule": rule,
    "short": short,
    "span": span,
    "status": status,
    "words": words,
    "zip": zip,
}
