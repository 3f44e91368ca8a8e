"""Messages in Slack's Block Kit (https://docs.slack.dev/reference/block-kit/blocks)."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from pydantic_core import to_json

#: Slack's limits for the lengths of texts, and for the number of fields of a section.
_HEADER, _TEXT, _FIELD, _FIELDS = 150, 3_000, 2_000, 10


def slack_message(title: str, text: str, lines: Mapping[str, str]) -> str:
    """Return the JSON of a message with a header, a text, and one field per line. The line `Link` becomes a link.

    All other texts are of the type `plain_text`, in which Slack shows markup, mentions, links and emoji codes as typed.
    Characters with a meaning in Slack's markup are escaped, and long texts are cut. The notification shows only the
    title, because Slack interprets markup in it.
    """
    fields = [_plain(f"{name}: {value}", _FIELD) for name, value in lines.items() if name != "Link"]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(title, _HEADER)},
        {"type": "section", "text": _plain(text, _TEXT)},
    ]
    blocks += [{"type": "section", "fields": fields[at : at + _FIELDS]} for at in range(0, len(fields), _FIELDS)]
    if "Link" in lines:
        link = {"type": "mrkdwn", "text": f"<{_escaped(lines['Link'], _TEXT)}|Open in the dashboard>", "verbatim": True}
        blocks.append({"type": "section", "text": link})
    shown = {"text": _escaped(title, _HEADER), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
    return to_json(shown).decode()


def _plain(text: str, most: int) -> dict[str, str | bool]:
    return {"type": "plain_text", "text": _escaped(text.strip(), most), "emoji": False}


def _escaped(text: str, most: int) -> str:
    found = escape(text, quote=False)
    # A cut within an escaped character would leave an incomplete one.
    return found if len(found) <= most else re.sub(r"&[a-z]*$", "", found[: most - 1]) + "…"
