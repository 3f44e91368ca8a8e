"""Slack channels of a service, and a check of their messages against the published format of Block Kit."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from app.alerts.watcher import Watcher
from app.core.text import visible
from app.core.timestamps import now_ms
from app.store.alert_mails import begin
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.slack import SlackSender
from tests.support.service_world import ServiceWorld

_LINK = re.compile(r"<https?://[^<>|\s]+\|Open in the dashboard>")
_FREE = re.compile(r"[<>]|&(?!(?:amp|lt|gt);)")
"""A character with a meaning in Slack's markup that is not escaped."""


def checked(body: bytes | str) -> tuple[str, dict[str, str], str]:
    """Return the title, the fields and the link of a message, if it keeps to the limits and has no foreign markup.

    The limits are Slack's: https://docs.slack.dev/reference/block-kit/blocks.
    """
    message = json.loads(body)
    assert set(message) == {"text", "blocks", "unfurl_links", "unfurl_media"}
    assert (message["unfurl_links"], message["unfurl_media"]) == (False, False)
    assert re.fullmatch(r"[A-Za-z ]+", message["text"])
    blocks, fields, links = message["blocks"], dict[str, str](), list[str]()
    assert 0 < len(blocks) <= 50
    for one in blocks:
        if one["type"] == "header":
            assert set(one) == {"type", "text"}
            assert _plain(one["text"], 150) == message["text"]
            continue
        assert one["type"] == "section"
        assert len(set(one) & {"text", "fields"}) == 1
        assert set(one) <= {"type", "text", "fields"}
        assert "fields" not in one or 0 < len(one["fields"]) <= 10
        fields |= dict(_plain(text, 2_000).split(": ", 1) for text in one.get("fields", ()))
        if one.get("text", {}).get("type") == "mrkdwn":
            assert set(one["text"]) == {"type", "text", "verbatim"}
            assert _LINK.fullmatch(one["text"]["text"])
            links.append(one["text"]["text"][1:].partition("|")[0])
        elif "text" in one:
            _plain(one["text"], 3_000)
    assert len(links) <= 1
    return message["text"], fields, "".join(links)


def _plain(text: Any, most: int) -> str:
    """Return the text that Slack shows for an object of the type `plain_text`."""
    assert set(text) == {"type", "text", "emoji"}
    assert (text["type"], text["emoji"]) == ("plain_text", False)
    found = str(text["text"])
    assert 0 < len(found) <= most
    assert not _FREE.search(found)
    assert visible(found) == found
    return found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@dataclass
class SlackJobs:
    """The jobs that queue and post messages, at a time set by the test: `now`, in Unix milliseconds."""

    world: ServiceWorld
    now: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        service = self.world.service
        client = service.part(DeliveryClient)
        client.clock, client._timeout = lambda: self.now, 0.5
        self.watcher = Watcher(
            service.db, service.projector, service.settings, chain_clock=service.clock.seen_ms, clock=lambda: self.now
        )
        self.sender = SlackSender(service.db, service.settings, client)
        service.db.write_now(begin)

    async def run(self) -> None:
        """Queue the messages about new events, and post all that are due."""
        await self.watcher.tick()
        await self.sender.tick()
