"""The auto-topup rule: stored, shown, replaced, refused. `tests/keeper/test_topups.py` tests its effect."""

import pytest

from tests.support.lost_answers import lose_answer
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}/auto-topup"


@pytest.mark.proves(
    "PUT /v1/wallets/{wallet_id}/auto-topup",
    "PutTopupRule(enabled, triggerBelow, topupAmount)",
    "TopupRule(wallet_id, id, enabled, updated_at)",
)
async def test_rule_is_stored_shown_and_replaced(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    body = {"enabled": True, "triggerBelow": "10", "topupAmount": "25.5"}

    made = await world.ok("PUT", _path(wallet), body)

    identity = {"wallet_id": wallet["wallet_id"], "id": wallet["wallet_id"]}
    assert made.items() >= {**identity, "enabled": True, "trigger_below": "10.00", "topup_amount": "25.50"}.items()
    await world.restart()
    assert await world.ok("GET", _path(wallet)) == made
    off = await world.ok("PUT", _path(wallet), {"enabled": False})
    assert (off["enabled"], off["trigger_below"], off["topup_amount"]) == (False, None, None)
    assert await world.ok("GET", _path(wallet)) == off


@pytest.mark.proves("GET /v1/wallets/{wallet_id}/auto-topup")
async def test_wallet_without_a_rule_shows_a_disabled_one(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)

    shown = await world.ok("GET", _path(wallet))

    assert shown == {
        "wallet_id": wallet["wallet_id"],
        "id": wallet["wallet_id"],
        "enabled": False,
        "trigger_below": None,
        "topup_amount": None,
        "updated_at": None,
    }


async def test_repeated_request_whose_answer_was_lost_shows_the_later_rule(world: ServiceWorld) -> None:
    wallet, headers = await world.wallet(funds=None), {"Idempotency-Key": "lost-topup-rule"}
    body = {"enabled": True, "triggerBelow": "10", "topupAmount": "25.5"}
    await world.ok("PUT", _path(wallet), body, headers=headers)
    await lose_answer(world, "lost-topup-rule")
    later = await world.ok("PUT", _path(wallet), {"enabled": False})

    assert await world.ok("PUT", _path(wallet), body, headers=headers) == later
    assert await world.ok("GET", _path(wallet)) == later


async def test_both_spellings_are_accepted(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)

    made = await world.ok("PUT", _path(wallet), {"enabled": True, "trigger_below": "0.000001", "topup_amount": "1"})

    assert (made["trigger_below"], made["topup_amount"]) == ("0.000001", "1.00")


@pytest.mark.proves("PutTopupRule(enabled, triggerBelow, topupAmount)")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"enabled": "true", "triggerBelow": "1", "topupAmount": "1"}, "invalid_request"),
        ({"enabled": True}, "invalid_request"),
        ({"enabled": True, "triggerBelow": "1"}, "invalid_request"),
        ({"enabled": True, "topupAmount": "1"}, "invalid_request"),
        ({"enabled": True, "triggerBelow": None, "topupAmount": "1"}, "invalid_request"),
        ({"enabled": True, "triggerBelow": "1", "topupAmount": "1", "every": "day"}, "invalid_request"),
        ({"enabled": True, "triggerBelow": 1, "topupAmount": "1"}, "invalid_amount"),
        ({"enabled": True, "triggerBelow": "-1", "topupAmount": "1"}, "invalid_amount"),
        ({"enabled": True, "triggerBelow": "1", "topupAmount": "0"}, "invalid_amount"),
        ({"enabled": False, "triggerBelow": "1", "topupAmount": "0"}, "invalid_amount"),
        ({"enabled": True, "triggerBelow": "1", "topupAmount": "0.0000001"}, "invalid_amount"),
        ({"enabled": True, "triggerBelow": "9300000000000", "topupAmount": "1"}, "invalid_amount"),
    ],
)
async def test_malformed_rule_is_refused_and_the_old_one_stays(world: ServiceWorld, body: Json, code: str) -> None:
    wallet = await world.wallet(funds=None)
    before = await world.ok("PUT", _path(wallet), {"enabled": True, "triggerBelow": "1", "topupAmount": "2"})

    error_of(await world.call("PUT", _path(wallet), body), 400, code)

    assert await world.ok("GET", _path(wallet)) == before


async def test_unknown_wallet_is_404_and_another_organisations_too(world: ServiceWorld) -> None:
    wallet, path = await world.wallet(funds=None), "/v1/wallets/wal_1111111111111111/auto-topup"
    stranger = world.key("admin", org=await world.organisation("other"))
    body = {"enabled": False}

    error_of(await world.call("PUT", path, body), 404, "wallet_not_found")
    error_of(await world.call("GET", path), 404, "wallet_not_found")
    error_of(await world.call("PUT", _path(wallet), body, key=stranger), 404, "wallet_not_found")
    error_of(await world.call("GET", _path(wallet), key=stranger), 404, "wallet_not_found")


async def test_archived_wallet_takes_no_rule(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    await world.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}")

    body = {"enabled": True, "triggerBelow": "1", "topupAmount": "1"}
    error_of(await world.call("PUT", _path(wallet), body), 422, "wallet_archived")


async def test_only_operators_set_and_see_rules(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    body = {"enabled": True, "triggerBelow": "1", "topupAmount": "1"}

    for key in (world.key("viewer"), world.key("agent", wallet["wallet_id"])):
        error_of(await world.call("PUT", _path(wallet), body, key=key), 403, "insufficient_permissions")
        error_of(await world.call("GET", _path(wallet), key=key), 403, "insufficient_permissions")
    assert (await world.ok("PUT", _path(wallet), body, key=world.key("operator")))["enabled"] is True


async def test_repetition_under_a_key_is_the_first_answer(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    body = {"enabled": True, "triggerBelow": "1", "topupAmount": "2"}
    first = await world.ok("PUT", _path(wallet), {**body, "idempotencyKey": "rule"})
    await world.ok("PUT", _path(wallet), {"enabled": False})

    again = await world.call("PUT", _path(wallet), {**body, "idempotencyKey": "rule"})

    assert (again.json(), again.headers["idempotent-replayed"]) == (first, "true")
    assert (await world.ok("GET", _path(wallet)))["enabled"] is False
    error_of(
        await world.call("PUT", _path(wallet), {"enabled": False, "idempotencyKey": "rule"}),
        409,
        "idempotency_conflict",
    )
