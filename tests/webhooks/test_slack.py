"""Slack channels: messages about approvals in Block Kit, hostile texts, failures, limits and races."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import select

from app.access.keyring import Principal
from app.alerts.slack_format import slack_message
from app.core.errors import BusinessError, NotFoundError, RequestError
from app.core.text import visible
from app.core.timestamps import HOUR, MINUTE
from app.store.alert_mails import table as mails
from app.store.slack_channels import SlackChannel, slack_channels
from app.webhooks import slack
from app.webhooks.models import SaveSlackChannel
from tests.dashboard.browsing import add_person
from tests.dashboard.corpus import CORPUS
from tests.support.service_world import Json, ServiceWorld
from tests.support.slack import SlackJobs, checked
from tests.support.webhooks import Behaviour, Receiver, answer, broken, endless, hang, ok

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HOSTILE = (
    *CORPUS,
    "<!channel> <!here> <!everyone> <@U012AB3CD> <#C024BE7LR> <!subteam^S1>",
    "@channel @here @everyone #general",
    "*bold* _italic_ ~gone~ `code` ```block``` > quote",
    "<https://evil.example|Approve here> https://evil.example mailto:a@evil.example",
    "&lt;!channel&gt; &amp;lt; & < > :white_check_mark: <!date^1^{date}^https://evil.example|x>",
    '"}]},{"type":"actions","elements":[]}',
    "\u202egnp.exe\u202c \u2066isolated\u2069 zero\u200bwidth \u061c",
    "line\nbreak\r\nAmount: 0.01 USDC",
    "&" * 512,
)


@pytest_asyncio.fixture(loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as opened:
        yield opened


async def _save(world: ServiceWorld, name: str, url: str, by: Principal | None = None) -> None:
    await slack.save(world.service, by or add_person(world, "admin"), SaveSlackChannel(name=name, url=url))


def _channels(world: ServiceWorld) -> dict[str, SlackChannel]:
    return {one.name: one for one in world.service.db.read_now(lambda conn: slack_channels(conn, [world.org]))}


def _seen(memo: str) -> str:
    """Return a memo as a message shows it. Of 512 characters that are all escaped, not all fit into a field."""
    line = visible(" ".join(memo.split())).strip()
    return line if line != "&" * 512 else "&" * 398 + "…"


async def _asks(world: ServiceWorld, *memos: str) -> tuple[list[str], Json, str]:
    """Request approvals with these memos. Return their ids, the wallet and the payee."""
    wallet = await world.wallet((await world.policy(requireCoSign="5", maxPerDay="900"))["policy_id"], label="Buyer")
    session, key, payee = await world.session(wallet), world.key("agent", wallet["wallet_id"]), await world.payee()
    refused = [
        await world.pay(wallet, payee, f"20.{number:02}", key=key, session=session, body={"memo": memo})
        for number, memo in enumerate(memos)
    ]
    return [one.json()["error"]["approval_id"] for one in refused], wallet, payee


@pytest.mark.proves("event slack.changed", "Limits: Slack channels")
async def test_message_states_the_facts_of_the_event(own_world: ServiceWorld, receiver: Receiver) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    await _save(world, "Finance", receiver.url)
    [approval_id], wallet, payee = await _asks(world, "Order 7")
    await world.ok("POST", f"/v1/approvals/{approval_id}/reject", {"reason": "No"})
    await jobs.run()

    shown = [checked(one.body) for one in receiver.received]
    assert {title for title, _, _ in shown} == {"Slack channel changed", "Approval requested", "Approval decided"}
    [(fields, link)] = [(fields, link) for title, fields, link in shown if title == "Approval requested"]
    [event] = (await world.ok("GET", "/v1/events?type=approval.requested"))["data"]
    assert fields["Wallet"] == f"Buyer ({wallet['wallet_id']})"
    assert (fields["Agent"], fields["Amount"], fields["Memo"]) == ("Buyer", "20.00 USDC", "Order 7")
    assert (fields["Address"], fields["Approval"]) == (payee, approval_id)
    assert fields["Rule"] == "above the 5.00 USDC co-sign threshold"
    assert (fields["Category"], fields["History"]) == (event["payee_category"], event["history"])
    assert fields["Headroom"] == event["headroom"] != ""
    assert link == f"{world.settings.base_url()}/dashboard/approvals/{approval_id}"
    url = receiver.url.encode()
    assert not any(url in one.body or b"hook" in one.body for one in receiver.received)
    [changed] = (await world.ok("GET", "/v1/events?type=slack.changed"))["data"]
    assert (changed["change"], changed["name"], changed["host"]) == ("added", "Finance", "127.0.0.1")

    await jobs.run()
    assert len(receiver.received) == len(shown)
    stored = world.service.db.read_now(lambda conn: slack_channels(conn, [world.org]))
    assert receiver.url not in repr(stored)


async def test_hostile_texts_do_not_become_markup(own_world: ServiceWorld, receiver: Receiver) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    await _save(world, "<!channel>", receiver.url)
    memos = (*_HOSTILE[-9:], *_HOSTILE[:4])
    _, wallet, _ = await _asks(world, *memos)
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"label": "<!here> *x*"})
    await jobs.run()

    shown = [checked(one.body)[1] for one in receiver.received]
    assert sorted(one["Memo"] for one in shown if "Memo" in one) == sorted(map(_seen, memos))
    assert [one["Channel"] for one in shown if "Channel" in one] == ["<!channel>"]
    assert any(one["Wallet"].startswith("<!here> *x*") for one in shown if "Wallet" in one)


async def test_every_text_fits_the_limits() -> None:
    for text in (*_HOSTILE, *(one * 3_000 for one in "a&<é😀"), "x" * 1_999 + "&"):
        line = " ".join(visible(text).split())
        title, fields, _ = checked(slack_message("Test", f"A {line}", {f"F{at}": line for at in range(30)}))
        assert (title, len(fields)) == ("Test", 30)
    for length in range(1_990, 2_001):
        cut = slack_message("Test", "x", {"F": "x" * length + "&&&"})
        assert len(checked(cut)[1]["F"]) <= 1_997
    # Invisible and reversing characters are removed where the lines are made; without this the check fails.
    with pytest.raises(AssertionError):
        checked(slack_message("Test", "\u202eabc", {}))


@pytest.mark.parametrize("status", ["403 Forbidden", "404 Not Found", "410 Gone"])
async def test_revoked_url_disables_its_channel_and_others_learn_it(
    own_world: ServiceWorld, receiver: Receiver, status: str
) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    async with Receiver(answer(status)) as gone:
        await _save(world, "Gone", gone.url)
        await _save(world, "Works", receiver.url)
        await jobs.run()
        await jobs.run()

        assert {name: one.status for name, one in _channels(world).items()} == {"Gone": "disabled", "Works": "enabled"}
        told = [checked(one.body)[1] for one in receiver.received]
        assert [(one["Channel"], one["Change"]) for one in told][-1] == ("Gone", "disabled")
        called = len(gone.received)
        await _asks(world, "one")
        await jobs.run()
        assert len(gone.received) == called

        gone.behave = ok
        await _save(world, "Gone", gone.url)
        await jobs.run()
    assert _channels(world)["Gone"].status == "enabled"
    assert checked(gone.received[-1].body)[1]["Change"] == "replaced"


@pytest.mark.parametrize(
    "behave", [broken, hang, answer("302 Found", extra="Location: http://127.0.0.1:1/\r\n"), answer("429 Too Many")]
)
async def test_failing_channel_is_tried_five_times_then_disabled(own_world: ServiceWorld, behave: Behaviour) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    async with Receiver(behave) as down:
        await _save(world, "Down", down.url)
        await jobs.run()
        assert len(down.received) == 1
        await jobs.run()
        assert len(down.received) == 1
        for pause in (MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR):
            assert _channels(world)["Down"].status == "enabled"
            jobs.now += pause
            await jobs.run()
        assert len(down.received) == 5
    assert _channels(world)["Down"].status == "disabled"


async def test_refused_message_is_dropped_and_the_channel_continues(own_world: ServiceWorld) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    async with Receiver(answer("400 Bad Request")) as strict:
        await _save(world, "Strict", strict.url)
        await jobs.run()
        strict.behave = endless
        await _asks(world, "one")
        await jobs.run()
        await jobs.run()
    assert [checked(one.body)[0] for one in strict.received] == ["Slack channel changed", "Approval requested"]
    assert _channels(world)["Strict"].status == "enabled"


async def test_slow_channel_waits_as_a_whole_and_delays_no_other(own_world: ServiceWorld, receiver: Receiver) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    async with Receiver(hang) as slow:
        await _save(world, "Slow", slow.url)
        await _asks(world, *(str(number) for number in range(20)))
        await _save(world, "Works", receiver.url)
        await jobs.run()
        assert len(slow.received) <= jobs.sender.at_once
    due = {one.due_at for one in world.service.db.read_now(lambda conn: conn.execute(select(mails)).all())}
    assert due == {jobs.now, jobs.now + MINUTE}
    assert receiver.received


async def test_removed_channel_gets_nothing_more_and_the_others_are_told(
    own_world: ServiceWorld, receiver: Receiver
) -> None:
    world, jobs = own_world, SlackJobs(own_world)
    async with Receiver() as other:
        await _save(world, "Old", receiver.url)
        await _save(world, "Other", other.url)
        await jobs.watcher.tick()
        by = add_person(world, "admin")
        await slack.remove(world.service, by, _channels(world)["Old"].channel_id)
        with pytest.raises(NotFoundError):
            await slack.remove(world.service, by, "slk_none")
        await jobs.run()
        assert "removed" in {checked(one.body)[1]["Change"] for one in other.received}
    assert receiver.received == []


async def test_sixth_channel_is_refused_even_at_once(own_world: ServiceWorld) -> None:
    world, by = own_world, add_person(own_world, "admin")
    url = "https://hooks.slack.example/services/T0/B0/secret"
    made = await asyncio.gather(*(_save(world, f"C{number}", url, by) for number in range(12)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in made) == ["BusinessError"] * 7 + ["NoneType"] * 5
    name = next(iter(_channels(world)))
    await _save(world, name, url, by)
    assert len(_channels(world)) == 5


async def test_test_message_is_sent_once_and_its_failure_is_shown(own_world: ServiceWorld, receiver: Receiver) -> None:
    world, by = own_world, add_person(own_world, "admin")
    await _save(world, "Finance", receiver.url)
    channel_id = _channels(world)["Finance"].channel_id
    await slack.test(world.service, by, channel_id)
    assert checked(receiver.received[0].body)[0] == "Test"
    assert receiver.received[0].line.startswith("POST /hook ")
    receiver.behave = answer("410 Gone", b"channel_is_archived " * 1_000)
    with pytest.raises(BusinessError, match=r"not delivered: status 410\.$"):
        await slack.test(world.service, by, channel_id)
    stranger = add_person(world, "admin", org=await world.organisation("strangers"))
    with pytest.raises(NotFoundError):
        await slack.test(world.service, stranger, channel_id)
    assert json.loads(receiver.received[0].body)["text"] == "Test"


@pytest.mark.parametrize("url", ["http://10.0.0.1/x", "https://169.254.169.254/latest", "ftp://example.com", "x"])
async def test_url_inside_a_network_is_refused(own_world: ServiceWorld, url: str) -> None:
    with pytest.raises(RequestError):
        await _save(own_world, "Inside", url)
    assert _channels(own_world) == {}
