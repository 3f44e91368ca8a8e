"""How pages show amounts, times, addresses and shares: in one way everywhere."""

from datetime import UTC, datetime
from urllib.parse import urlsplit

from markupsafe import Markup

from app.core.money import format_usdc
from app.core.timestamps import iso_ms, parse_iso_ms

#: Text of ours, or markup with what is not escaped.
Words = str | Markup
_SHOWN_OF_ADDRESS = 4
_LONG = 14
_TIME = '<time datetime="{0}" title="{1} UTC">{2}</time>'


def usdc(amount: int | str | None) -> str:
    """Return an amount with thousands separators and at least two decimals; `-` for none."""
    if amount is None:
        return "-"
    text = amount if isinstance(amount, str) else format_usdc(amount)
    whole, _, fraction = text.partition(".")
    return f"{int(whole):,}.{fraction or '00'}"


def moment(value: int | str | None, *, exact: bool = False) -> Markup | str:
    """Return a time, in Unix milliseconds or ISO 8601, as `<time>`: a script shows the reader's zone, the title UTC.

    ``exact`` shows its milliseconds, too.
    """
    if value is None:
        return "-"
    milliseconds = parse_iso_ms(value) if isinstance(value, str) else value
    machine = iso_ms(milliseconds)
    shown = datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    precise = f"{shown}.{milliseconds % 1000:03}"
    marked = '<time datetime="{0}" title="{1} UTC" data-ms>{1}</time>' if exact else _TIME
    return Markup(marked).format(machine, precise, shown)  # noqa: S704 - constant markup, values escaped


def span(milliseconds: int) -> str:
    """Return how long something lasts in its two largest units: `23 h 59 min`, `2 days 4 h`."""
    minutes = max(0, milliseconds) // 60_000
    days, hours, minutes = minutes // 1_440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else "less than a minute"


def short(address: str | None) -> Markup | str:
    """Return an address with its middle left out, and all of it in the title; short names stay as they are."""
    if not address:
        return "-"
    if len(address) <= _LONG or "." in address:
        return address
    ends = f"{address[:_SHOWN_OF_ADDRESS]}…{address[-_SHOWN_OF_ADDRESS:]}"
    return Markup('<span class="mono" title="{}">{}</span>').format(address, ends)


def words(code: str) -> str:
    """Return a code of the API in words: `policy_violation` as `Policy violation`."""
    return code.replace("_", " ").replace(".", ": ").capitalize()


def status(code: str) -> str:
    """Return a status in words; that of a vault which had a refusal lately does not sound as if it were stopped."""
    return "Refused recently" if code == "policy_violation" else words(code)


def host(url: str) -> str:
    """Return the host of an explorer's link."""
    return urlsplit(url).hostname or url


FILTERS = {
    "host": host,
    "usdc": usdc,
    "moment": moment,
    "short": short,
    "span": span,
    "status": status,
    "words": words,
    "zip": zip,
}
