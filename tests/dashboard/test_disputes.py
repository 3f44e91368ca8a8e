"""Disputes: the arbiter's queue, its clock, and decisions that show what they change."""

import pytest
from playwright.async_api import expect

from tests.dashboard.browsing import (
    LOOKS,
    Crafted,
    Served,
    findings,
    forget_step_up,
    log,
    overflow,
    posted,
    refusals,
    sign_in,
)
from tests.support.escrows import OUTPUT, TASK, Agent, agent, of
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_REASON = "The summary is about another report"


async def _disputed(world: ServiceWorld, amount: str = "10", **fields: str) -> tuple[Agent, Agent, Json]:
    """Both sides, and their disputed escrow."""
    paying, receiving = await agent(world), await agent(world, funds=None)
    made = await paying.lock(receiving, amount, **fields)
    await paying.ok("POST", of(made, "dispute"), {"reason": _REASON, "evidence": f"sha256:{OUTPUT}"})
    return paying, receiving, made


@pytest.mark.proves(
    "GET /dashboard/disputes/{escrow_id}",
    "POST /dashboard/disputes/{escrow_id}/review",
    "POST /dashboard/disputes/{escrow_id}/decide",
)
async def test_dispute_is_decided_by_a_split_that_shows_both_sides(site: Served) -> None:
    world = site.world
    paying, receiving, made = await _disputed(world, taskDescription="<b>Summarise</b>")
    for look in reversed(LOOKS):
        async with site.visit("admin", **look) as page:
            await page.goto(f"{site.base}/disputes")
            await expect(page).to_have_title("(1) Disputes · Agent Vault")
            assert await findings(page) == []
            assert await overflow(page) <= 0
            row = page.locator("tbody tr")
            await expect(row).to_contain_text("23 h 5")
            await row.get_by_role("link", name="<b>Summarise</b>").click()
            await page.get_by_role("heading", name="Escrow of 10.00 USDC").wait_for()
            text = await page.locator("main").inner_text()
            for shown in (_REASON, f"sha256:{OUTPUT}", made["task_hash"], made["escrow_id"], "<b>Summarise</b>"):
                assert shown in text
            assert await findings(page) == []
            assert await overflow(page) <= 0
            await page.get_by_label("Decision").select_option("split")
            await page.get_by_label("To the receiver").fill("4")
            await page.get_by_role("button", name="Review the decision").click()
            table = page.get_by_role("region", name="Before and after")
            await table.wait_for()
            rows = [await row.locator("th, td").all_inner_texts() for row in await table.locator("tbody tr").all()]
            assert rows == [
                ["Locked in the escrow", "10.00", "0.00"],
                ["Agent, the receiver", "0.00", "4.00"],
                ["Agent, the payer", "90.00", "96.00"],
            ]
            assert await overflow(page) <= 0
            if look == LOOKS[0]:
                await page.get_by_role("button", name="Decide", exact=True).click()
                await page.get_by_text("The dispute is decided").wait_for()
                await expect(page).to_have_title("Disputes · Agent Vault")
                await page.get_by_text("No dispute is open.").wait_for()
            else:
                assert (await world.ok("GET", of(made)))["status"] == "disputed"
    assert (await paying.balance(), await receiving.balance()) == ("96.00", "4.00")
    entry = log(world, "escrow.resolve")[0]
    assert entry.actor.type == "person"
    assert (entry.details["decision"], entry.details["released_amount"]) == ("split", "4.00")
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/disputes/{escrow_id}/decide")
@pytest.mark.parametrize(
    ("decision", "pays", "receives"), [("release", "90.00", "10.00"), ("refund", "100.00", "0.00")]
)
async def test_whole_amount_goes_to_one_side(world: ServiceWorld, decision: str, pays: str, receives: str) -> None:
    paying, receiving, made = await _disputed(world)
    path = f"/dashboard/disputes/{made['escrow_id']}"
    admin = Crafted(world, sign_in(world, "admin"))
    asked = await admin.post(f"{path}/review", {"decision": decision, "released_amount": ""})
    assert f"<strong>{pays}</strong>" in asked.text
    assert f"<strong>{receives}</strong>" in asked.text
    csrf = await admin.csrf()
    forget_step_up(world)
    waiting = await admin.post(f"{path}/decide", {"decision": decision}, csrf=csrf)
    assert waiting.status_code == 403
    assert "Confirm that it is you" in waiting.text
    admin = Crafted(world, sign_in(world, "admin"))
    key = asked.text.partition('name="idempotency_key" value="')[2].partition('"')[0]
    for _ in range(2):
        answer = await admin.post(f"{path}/decide", {"decision": decision, "idempotency_key": key})
        assert answer.status_code == 303
    assert (await paying.balance(), await receiving.balance()) == (pays, receives)
    again = await admin.post(f"{path}/review", {"decision": decision})
    assert again.status_code == 422
    assert "Outcome" in again.text


@pytest.mark.proves("GET /dashboard/disputes")
async def test_queue_has_the_longest_waiting_first_and_says_what_is_overdue(own_world: ServiceWorld) -> None:
    world = own_world
    _, _, old = await _disputed(world, "1", timeoutSeconds=2_000_000)  # type: ignore[arg-type]
    await world.later(20 * 3600)
    _, _, new = await _disputed(world, "2")
    me = Crafted(world, sign_in(world, "operator"))
    text = (await me.client.get("/dashboard/disputes")).text
    assert text.index(old["escrow_id"]) < text.index(new["escrow_id"])
    assert "3 h 59 min left" in text
    await world.later(5 * 3600)
    text = (await me.client.get("/dashboard/disputes")).text
    assert "h 0 min overdue" in text or "59 min overdue" in text
    shown = (await me.client.get(f"/dashboard/disputes/{old['escrow_id']}")).text
    assert "overdue" in shown
    assert "Only an admin can decide" in shown


async def test_what_an_outside_receiver_holds_is_shown_if_the_chain_tells(own_world: ServiceWorld) -> None:
    world, payee = own_world, await own_world.payee()
    paying = await agent(world)
    await world.pay(paying.wallet, payee, "3")
    made = await paying.lock(payee)
    await paying.ok("POST", of(made, "dispute"), {"reason": _REASON})
    admin = Crafted(world, sign_in(world, "admin"))
    path = f"/dashboard/disputes/{made['escrow_id']}/review"
    asked = (await admin.post(path, {"decision": "release"})).text
    assert f"{payee}, the receiver" in asked
    assert "<strong>13.00</strong>" in asked
    world.line.lose_requests = lambda method: method == "getMultipleAccounts"
    assert "<strong>10.00 more</strong>" in (await admin.post(path, {"decision": "release"})).text


async def test_without_the_arbiters_key_disputes_are_decided_elsewhere(own_world: ServiceWorld) -> None:
    world = own_world
    _, _, made = await _disputed(world)
    (world.settings.data_dir / "keys" / "arbiter.json").unlink()
    await world.restart()
    admin = Crafted(world, sign_in(world, "admin"))
    path = f"/dashboard/disputes/{made['escrow_id']}"
    text = (await admin.client.get(path)).text
    assert "disputes are decided elsewhere" in text
    assert set(posted(text)) <= {"/dashboard/sign-out", "/dashboard/pause"}
    answer = await admin.post(f"{path}/decide", {"decision": "release"})
    assert answer.status_code == 503
    assert (await world.ok("GET", of(made)))["status"] == "disputed"


@pytest.mark.proves("POST /dashboard/disputes/{escrow_id}/review")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"decision": "split", "released_amount": ""}, "released_amount"),
        ({"decision": "split", "released_amount": "-4"}, "released_amount"),
        ({"decision": "split", "released_amount": "10"}, "released_amount"),
        ({"decision": "release", "released_amount": "4"}, "released_amount"),
        ({"decision": "keep", "released_amount": ""}, "decision"),
        ({"decision": "", "released_amount": ""}, "decision"),
    ],
)
async def test_bad_decision_is_refused_at_its_field_and_kept(
    world: ServiceWorld, fields: dict[str, str], field: str
) -> None:
    disputes = (await world.ok("GET", "/v1/payments/a2a?status=disputed"))["data"]
    made = disputes[0] if disputes else (await _disputed(world))[2]
    admin = Crafted(world, sign_in(world, "admin"))
    for place in ("review", "decide"):
        answer = await admin.post(f"/dashboard/disputes/{made['escrow_id']}/{place}", fields)
        assert answer.status_code == 400
        assert f'<p class="says wrong" id="{field}-says">' in answer.text
        assert f'value="{fields["released_amount"]}"' in answer.text
    assert (await world.ok("GET", of(made)))["status"] == "disputed"


@pytest.mark.proves("GET /dashboard/disputes/{escrow_id}")
async def test_only_an_admin_of_the_organisation_decides(own_world: ServiceWorld) -> None:
    world = own_world
    _, _, made = await _disputed(world)
    path = f"/dashboard/disputes/{made['escrow_id']}"
    for role in ("viewer", "operator"):
        person = Crafted(world, sign_in(world, role))
        text = (await person.client.get(path)).text
        assert TASK in text
        assert set(posted(text)) <= {"/dashboard/sign-out", "/dashboard/pause"}
        for place in ("review", "decide"):
            assert (await person.post(f"{path}/{place}", {"decision": "release"})).status_code == 403
            who, what = (await refusals(world))[0]
            assert who.startswith("person:")
            assert what == f"POST /dashboard/disputes/{{escrow_id}}/{place}"
    other = await world.organisation("other")
    stranger = Crafted(world, sign_in(world, "admin", org=other))
    assert TASK not in (await stranger.client.get("/dashboard/disputes")).text
    assert (await stranger.client.get(path)).status_code == 404
    for place in ("review", "decide"):
        answer = await stranger.post(f"{path}/{place}", {"decision": "release"})
        assert answer.status_code == 404
        assert TASK not in answer.text
    assert (await world.ok("GET", of(made)))["status"] == "disputed"
