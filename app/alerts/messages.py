"""The texts and recipients of alert e-mails and Slack messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import Connection

from app.alerts._rules import Rules, effective
from app.alerts.slack_format import slack_message
from app.core.event_catalogue import EVENTS
from app.core.identifiers import derived_id
from app.core.text import visible
from app.core.timestamps import HOUR
from app.store.alert_kinds import SLACK_EVENTS, TYPE_OF
from app.store.alert_mails import Mail, count_since, omitted_so_far
from app.store.feed import FeedEvent
from app.store.slack_channels import SlackChannel, slack_channels
from app.store.wallets import labels

_log = structlog.get_logger(__name__)

_To = tuple[str, str, str]
"""An organisation, a type of event and a recipient. Messages are counted for each combination of the three."""
_LAST = (
    "Further messages about this {shared} are omitted until fewer were queued within the past hour. A summary will "
    "state their number. GET /v1/events lists all events.\n"
)


def compose(
    conn: Connection, events: Sequence[FeedEvent], rules: Rules, now: int, *, hourly: int, dashboard: str
) -> list[Mail]:
    """Return the messages that the rules require for events, as queued at the Unix millisecond `now`.

    The rules name the addresses for e-mails. Enabled Slack channels get the events in `SLACK_EVENTS` without a rule.
    Each message links to a page of the dashboard. `dashboard` is the dashboard's URL. A recipient gets at most `hourly`
    messages an hour about a type of event; 0 means no limit. The limit is per organisation, so that no organisation
    uses up the limit of another. The limit is also per type: refused payments cost nothing, and an agent that makes
    many of them must not suppress other alerts. One wallet may use at most a quarter of the limit. The last quarter is
    kept for wallets that have not caused a message in that hour. At the end of the hour, a summary states the number of
    omitted messages.
    """
    told = {event.org for event in events if event.type in SLACK_EVENTS}
    channels = slack_channels(conn, told) if told else []
    wanted = [(event, recipients) for event in events if (recipients := _recipients(event, rules, channels))]
    names = labels(conn, {event.wallet_id for event, _ in wanted if event.wallet_id is not None})
    queued: dict[_To, Counter[str | None]] = {}
    omitted: Counter[_To] = Counter()
    queue = []
    for event, recipients in wanted:
        wallet_id = event.wallet_id
        subject, sentence, lines = _text(event, names.get(wallet_id or "", ""), dashboard)
        last = _LAST.format(shared="type of event" if wallet_id is None else "wallet and this type of event")
        for recipient in recipients:
            to = event.org, event.type, recipient
            if to not in queued:
                queued[to] = Counter(count_since(conn, *to, now - HOUR))
            if _is_full(queued[to], wallet_id, hourly):
                _log.warning("alert_mail_omitted", event_id=event.event_id, hourly=hourly)
                omitted[to] += 1
                continue
            queued[to][wallet_id] += 1
            note = last if _is_full(queued[to], wallet_id, hourly) else ""
            text = _body(to, sentence, lines, note)
            mail_id = derived_id("mail_", event.event_id, recipient)
            shown = {"subject": subject, "body": text, "due_at": now, "created_at": now, "wallet_id": wallet_id}
            queue.append(_mail(to, mail_id=mail_id, event_id=event.event_id, **shown))
    return queue + [_summary(conn, to, count, now) for to, count in omitted.items()]


def _is_full(queued: Counter[str | None], wallet_id: str | None, hourly: int) -> bool:
    """Return True if no more e-mails about the wallet, or about no wallet if the id is None, are allowed this hour."""
    mine, share = queued[wallet_id], hourly // 4
    used_up = wallet_id is not None and mine >= max(1, share)
    return hourly > 0 and (used_up or queued.total() >= hourly - (share if mine else 0))


def _summary(conn: Connection, to: _To, count: int, now: int) -> Mail:
    """Return the summary of an hour in which `count` more e-mails were omitted.

    The summary is due at the end of the hour.
    """
    end = (now // HOUR + 1) * HOUR
    summary_id = derived_id("mail_", *to, str(end))
    count += omitted_so_far(conn, summary_id)
    title, until = EVENTS[to[1]].mail_title, f"{datetime.fromtimestamp(end // 1000, UTC):%Y-%m-%d %H:%M} UTC"
    text = (
        f"In the hour until {until}, {count} messages about this type of event were omitted, because the hourly limit\n"
        "was reached, or one wallet had used up its share of the limit. GET /v1/events lists all events.\n"
    )
    text = text if _is_mail(to) else slack_message(title, text, {})
    shown = {"subject": f"{title}: {count} messages omitted", "body": text, "due_at": end, "created_at": now}
    return _mail(to, mail_id=summary_id, event_id=summary_id, omitted=count, **shown)


def _mail(to: _To, **fields: Any) -> Mail:
    org, kind, recipient = to
    return Mail(org=org, type=kind, recipient=recipient, **fields)


def _recipients(event: FeedEvent, rules: Rules, channels: Sequence[SlackChannel]) -> Sequence[str]:
    rule, emails = effective(rules, TYPE_OF[event.type], event.org, event.wallet_id)
    mine = (one for one in channels if one.org == event.org and one.status == "enabled")
    of_slack = [one.channel_id for one in mine if event.type in SLACK_EVENTS]
    return [*(emails if rule is not None and rule.enabled else ()), *of_slack]


def _is_mail(to: _To) -> bool:
    return "@" in to[2]


def _body(to: _To, sentence: str, lines: Mapping[str, str], note: str) -> str:
    """Return the body of a message: plain text for an address, Block Kit for a Slack channel."""
    if not _is_mail(to):
        return slack_message(EVENTS[to[1]].mail_title, f"{sentence} {note}", lines)
    table = "".join(f"{name + ':':<13}{text}\n" for name, text in lines.items())
    return f"{sentence}\n\n{table}" + (f"\n{note}" if note else "")


def _text(event: FeedEvent, label: str, dashboard: str) -> tuple[str, str, Mapping[str, str]]:
    """Return the subject, sentence and lines of the message about an event. `label` is the wallet's name, or empty."""
    kind, sentence = EVENTS[event.type], EVENTS[event.type].mail_text
    of_wallets = "wallet_id" in kind.fields
    about = event.wallet_id or ("all wallets" if of_wallets else event.payload.get("name") or "organisation")
    if event.payload.get("freeze"):
        sentence += " The alert freezes the wallet for this reason."
    # Events stored by an earlier version lack `refusals`. Each of them reports one refusal.
    payload = {"refusals": 1} | {name: "none" if value is None else value for name, value in event.payload.items()}
    page = kind.mail_link or ("vaults/{wallet_id}" if event.wallet_id else "")
    lines = {
        **({"Wallet": f"{label} ({event.wallet_id})" if event.wallet_id else "all"} if of_wallets else {}),
        **{name: template.format_map(payload) for name, template in kind.mail_lines.items()},
        "Time": f"{datetime.fromtimestamp(event.timestamp // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Event": event.event_id,
        "Link": f"{dashboard}/{page.format_map(payload)}".rstrip("/"),
    }
    shown = {name: _line(text) for name, text in lines.items()}
    return f"{kind.mail_title}: {_line(label or about)}", sentence, shown


def _line(text: str) -> str:
    """Return the visible text on one line. Line breaks in a label or memo could otherwise look like further lines."""
    return visible(" ".join(text.split()))
