"""What wallets cost the fee payer: limits in SOL per day and of held rent, and the reserve for brakes."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.system_program import TransferParams, transfer

from app.chain.fees import ALLOWANCE_RENT, ESCROW_RENT, SETTLEMENT, SIGNATURE, TOKEN_ACCOUNT_RENT
from app.core.event_catalogue import EVENTS
from app.core.money import format_sol
from app.core.timestamps import DAY
from app.store.fee_payer_use import use_of
from tests.support.escrows import A2A, agent, of, shows_output, terms
from tests.support.sent import sent_to_sqlite
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_RENT_EXEMPT = 890_880
_LIMITS = ("sol_per_day", "sol_per_wallet_day", "sol_held_per_wallet")
_PAYMENT = 2 * SIGNATURE


async def _used(world: ServiceWorld, scope: str) -> int:
    day = await world.service.clock.moment_ms() // DAY
    return world.service.db.read_now(lambda conn: use_of(conn, scope, day))[0]


async def _limit(world: ServiceWorld, name: str, wallet: Json, more: int) -> None:
    """Restart with a limit that leaves `more` lamports to a wallet, or to its organisation."""
    scope = world.org if name == "sol_per_day" else wallet["wallet_id"]
    await world.restart(**{name: format_sol(await _used(world, scope) + more)})


async def _lamports(world: ServiceWorld) -> int:
    account = await world.service.chain.account(world.service.signers.fee_payer_address)
    assert account is not None
    return account.lamports


async def _leave(world: ServiceWorld, lamports: int) -> None:
    """Leave the fee payer with this much."""
    payer = world.service.signers.fee_payer_address
    away = await _lamports(world) - lamports
    await world.land([transfer(TransferParams(from_pubkey=payer, to_pubkey=Keypair().pubkey(), lamports=away))])
    assert await _lamports(world) == lamports


async def _events(world: ServiceWorld) -> list[Json]:
    found = await world.ok("GET", "/v1/events?type=alert.sol_limit")
    events: list[Json] = found["data"]
    return events


def _grant(wallet: Json, to: str) -> tuple[str, str, Json]:
    body = {"amount": "1", "destination": to, "delegate": str(Keypair().pubkey()), "expiresIn": 60}
    return "POST", f"/v1/wallets/{wallet['wallet_id']}/allowances", body


@pytest.mark.proves(
    "error sol_limit_reached",
    "Limits: SOL for a wallet's fees, and rent that does not return",
    "Limits: SOL for fees and such rent of all wallets of an organisation",
)
@pytest.mark.parametrize("name", ["sol_per_wallet_day", "sol_per_day"])
async def test_daily_sol_ends_payments_until_midnight(own_world: ServiceWorld, name: str) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await _limit(world, name, wallet, 3 * _PAYMENT)
    for _ in range(3):
        assert (await world.pay(wallet, to, "0.000001")).json()["status"] == "confirmed"

    answer = await world.pay(wallet, to, "0.000001")

    error = error_of(answer, 429, "sol_limit_reached")
    now = datetime.now(UTC)
    assert error["retry_at"].endswith("T00:00:00.000Z")
    until = datetime.fromisoformat(error["retry_at"]) - now
    assert abs(until.total_seconds() - int(answer.headers["Retry-After"])) < 5
    await world.later(until.total_seconds() + 2)
    assert (await world.pay(wallet, to, "0.000001")).json()["status"] == "confirmed"


async def test_spent_sol_is_what_the_fee_payer_paid(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    to = await world.payee()

    async def costs(request: Any, *, later: int = 0) -> tuple[int, int]:
        before, used = await _lamports(world), await _used(world, paying.id)
        answer = await request
        assert getattr(answer, "status_code", 200) == 200, answer.text
        return await _used(world, paying.id) - used - later, before - await _lamports(world)

    for made in (
        await costs(world.pay(paying.wallet, to, "1")),
        await costs(world.pay(paying.wallet, str(Keypair().pubkey()), "1")),
        await costs(world.ok("POST", f"/v1/wallets/{paying.id}/rotate-token", {})),
        await costs(world.ok("POST", f"/v1/wallets/{paying.id}/withdraw", {"amount": "1", "currency": "USDC"})),
    ):
        assert made[0] == made[1], made
    counted, paid = await costs(world.call("POST", A2A, terms(paying, receiving, "1")), later=SETTLEMENT)
    assert paid - counted == ESCROW_RENT
    counted, paid = await costs(world.call(*_grant(paying.wallet, to)), later=SETTLEMENT)
    assert paid - counted == ALLOWANCE_RENT


async def test_release_counts_its_opened_account_and_no_second_fee(own_world: ServiceWorld) -> None:
    paying = await agent(own_world)
    made = await paying.lock(str(Keypair().pubkey()), "1")
    used = await _used(own_world, paying.id)

    await paying.ok("POST", of(made, "complete"), shows_output())

    assert await _used(own_world, paying.id) - used == TOKEN_ACCOUNT_RENT


async def test_used_up_sol_stops_only_expenses(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    to, locked = await world.payee(), await paying.lock(receiving)
    refunded = await paying.lock(receiving, "1", timeoutSeconds=60)
    granted = await world.ok(*_grant(paying.wallet, to))
    await _limit(world, "sol_per_wallet_day", paying.wallet, 0)

    for request in (
        world.pay(paying.wallet, to, "1"),
        paying.call("POST", A2A, terms(paying, receiving, "1")),
        world.call(*_grant(paying.wallet, to)),
    ):
        error_of(await request, 429, "sol_limit_reached")

    path = f"/v1/wallets/{paying.id}"
    await paying.ok("POST", of(locked, "complete"), shows_output())
    await world.ok("POST", f"{path}/allowances/{granted['allowance_id']}/settle", {})
    await world.ok("POST", f"{path}/rotate-token", {})
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    await world.ok("PATCH", path, {"status": "active", "policyId": "pol_locked"})
    await world.ok("POST", f"{path}/withdraw", {"amount": "1", "currency": "USDC"})
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "1"})
    await world.later(70)
    await world.keeper().tick()
    await world.catch_up()
    assert (await world.ok("GET", f"{A2A}/{refunded['escrow_id']}"))["status"] == "refunded"


@pytest.mark.proves("Authentication: Rotation")
async def test_used_up_sol_stops_rotations_by_the_agent(own_world: ServiceWorld) -> None:
    world, acting = own_world, await agent(own_world)
    path = f"/v1/wallets/{acting.id}/rotate-token"
    acting.session = (await acting.ok("POST", path, {}))["session_token"]
    await _limit(world, "sol_per_wallet_day", acting.wallet, 0)

    error_of(await acting.call("POST", path, {}), 429, "sol_limit_reached")

    await world.ok("POST", path, {})


@pytest.mark.proves(
    "error sol_limit_reached",
    "Limits: Rent held in a wallet's open escrows and allowances",
    "SolUse(sol_held_per_wallet)",
)
async def test_held_rent_is_limited_and_returns(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    await world.restart(sol_held_per_wallet=format_sol(ESCROW_RENT + ALLOWANCE_RENT))
    to, made = await world.payee(), await paying.lock(receiving)
    await world.ok(*_grant(paying.wallet, to))

    error = error_of(await paying.call("POST", A2A, terms(paying, receiving, "1")), 429, "sol_limit_reached")
    error_of(await world.call(*_grant(paying.wallet, to)), 429, "sol_limit_reached")

    assert error["retry_at"] > made["created_at"]
    assert (await world.pay(paying.wallet, to, "1")).json()["status"] == "confirmed"
    await paying.ok("POST", of(made, "complete"), shows_output())
    await paying.lock(receiving)


@pytest.mark.proves("event alert.sol_limit")
async def test_alert_is_sent_once_at_four_fifths(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    used = await _used(world, wallet["wallet_id"])
    await world.restart(sol_per_wallet_day=format_sol((used + 4 * _PAYMENT) * 5 // 4))

    for _ in range(3):
        await world.pay(wallet, to, "0.01")
        assert await _events(world) == []
    for _ in range(2):
        await world.pay(wallet, to, "0.01")

    [event] = await _events(world)
    assert (event["severity"], event["wallet_id"]) == ("warning", wallet["wallet_id"])
    assert event["spent"] == format_sol(used + 4 * _PAYMENT)
    assert set(EVENTS["alert.sol_limit"].fields) <= set(event)


async def test_clock_that_steps_back_over_midnight_gives_nothing_back(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    now = await world.service.clock.moment_ms()
    await world.later(((now // DAY + 1) * DAY - now) / 1000 + 5)
    await world.restart(sol_per_wallet_day=format_sol(2 * _PAYMENT))
    for _ in range(2):
        assert (await world.pay(wallet, to, "0.01")).status_code == 200
    error_of(await world.pay(wallet, to, "0.01"), 429, "sol_limit_reached")
    ahead = world.clock.ahead

    world.clock.ahead = 0.0  # back across midnight
    await world.restart()
    await world.pay(wallet, to, "0.01")
    world.clock.ahead = ahead
    await world.restart()

    error_of(await world.pay(wallet, to, "0.01"), 429, "sol_limit_reached")


@pytest.mark.proves(
    "error fee_payer_insufficient", "Limits: SOL kept for freezes and pauses", "SolUse(fee_payer_reserve)"
)
async def test_last_sol_is_kept_for_brakes(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    to = await world.payee()
    reserve = 50_000_000
    await _leave(world, reserve + _PAYMENT)
    assert (await world.pay(paying.wallet, to, "1")).json()["status"] == "confirmed"

    for request in (
        world.pay(paying.wallet, to, "1"),
        paying.call("POST", A2A, terms(paying, receiving, "1")),
        world.call(*_grant(paying.wallet, to)),
    ):
        answer = await request
        error_of(answer, 503, "fee_payer_insufficient")
        assert answer.headers["Retry-After"] == "60"

    path = f"/v1/wallets/{paying.id}"
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"
    assert (await world.ok("POST", "/v1/organization/pause", {"paused": True}))["paused"]
    await world.ok("POST", f"{path}/withdraw", {"amount": "1", "currency": "USDC"})


@pytest.mark.proves("error fee_payer_insufficient")
async def test_fee_payer_without_sol_is_named(own_world: ServiceWorld) -> None:
    world = own_world
    await world.restart(fee_payer_reserve="0")
    wallet, to = await world.wallet(), await world.payee()
    await _leave(world, _RENT_EXEMPT + SIGNATURE)

    error_of(await world.pay(wallet, to, "1"), 503, "fee_payer_insufficient")


async def test_concurrent_payments_keep_the_limit(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await _limit(world, "sol_per_wallet_day", wallet, 3 * _PAYMENT)

    answers = await asyncio.gather(*(world.pay(wallet, to, "0.01") for _ in range(8)))

    assert sorted(one.status_code for one in answers) == [200] * 3 + [429] * 5


@pytest.mark.proves("SolUse(sol_per_day, sol_per_wallet_day, fee_payer_balance)")
async def test_embedded_chain_has_no_limit_unless_it_is_set(world: ServiceWorld) -> None:
    sol = (await world.ok("GET", "/v1/organization"))["sol"]

    assert [sol[name] for name in _LIMITS] == [None] * 3
    assert Decimal(sol["fee_payer_balance"]) > 900
    assert Decimal(sol["fee_payer_reserve"]) == Decimal("0.05")


@pytest.mark.proves(
    "PATCH /v1/organization",
    "action organization.limit",
    "UpdateOrganization(solPerDay, solPerWalletDay, solHeldPerWallet)",
    "SolUse(sol_per_day, sol_per_wallet_day, sol_held_per_wallet)",
)
async def test_admin_lowers_the_limits_of_the_service(own_world: ServiceWorld) -> None:
    world, path = own_world, "/v1/organization"
    await world.restart(sol_per_wallet_day="0.5")
    wallet, to = await world.wallet(), await world.payee()
    used = await _used(world, wallet["wallet_id"])

    lowered = await world.ok("PATCH", path, {"solPerWalletDay": format_sol(used + _PAYMENT), "solPerDay": "3"})

    assert [lowered["sol"][name] for name in _LIMITS] == ["3.00", format_sol(used + _PAYMENT), None]
    assert (await world.pay(wallet, to, "1")).status_code == 200
    error_of(await world.pay(wallet, to, "1"), 429, "sol_limit_reached")
    error_of(await world.call("PATCH", path, {"solPerWalletDay": "0.6"}), 400, "invalid_request")
    error_of(await world.call("PATCH", path, {"solPerWalletDay": "0.1234567891"}), 400, "invalid_request")
    error_of(await world.call("PATCH", path, {"solPerWalletDay": 1}), 400, "invalid_request")
    error_of(await world.call("PATCH", path, {}, key=world.key("operator")), 403, "insufficient_permissions")
    raised = await world.ok("PATCH", path, {"solPerWalletDay": None})
    assert [raised["sol"][name] for name in _LIMITS] == ["3.00", "0.50", None]
    assert (await world.pay(wallet, to, "1")).status_code == 200
    [entry, *_] = (await world.ok("GET", "/v1/audit-log?action=organization.limit"))["data"]
    assert entry["details"] == {"sol_per_wallet_day": None}


async def test_repeated_change_does_not_undo_a_later_one(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path, same = own_world, "/v1/organization", {"Idempotency-Key": "limit"}
    with monkeypatch.context() as unknown:
        # The limit is stored, but the organisation cannot be shown.
        unknown.setattr("app.organisations.service.reserve", lambda _conn, _org: None)
        error_of(await world.call("PATCH", path, {"solPerDay": "3"}, headers=same), 503, "chain_unavailable")
    await world.ok("PATCH", path, {"solPerDay": "1"})

    repeated = await world.ok("PATCH", path, {"solPerDay": "3"}, headers=same)

    assert repeated["sol"]["sol_per_day"] == "1.00"
    assert len((await world.ok("GET", "/v1/audit-log?action=organization.limit"))["data"]) == 2


@pytest.mark.proves("Organization(sol)", "SolUse(spent_today, fee_payer_days_left)")
async def test_use_and_days_left_are_shown(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.pay(wallet, to, "1")
    used = await _used(world, world.org)
    await _leave(world, 50_000_000 + 3 * used + 1)
    await world.restart()

    sol = (await world.ok("GET", "/v1/organization"))["sol"]

    assert (sol["spent_today"], sol["fee_payer_days_left"]) == (format_sol(used), 3)


@pytest.mark.proves(
    "WalletSol(held, resets_at, sol_held_per_wallet, sol_per_wallet_day, spent_today, wallet_id)",
    "GET /v1/wallets/{wallet_id}/sol",
)
async def test_wallet_shows_the_sol_that_it_costs(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying, to = await agent(world, policy["policy_id"]), await world.payee()
    await world.restart(sol_per_wallet_day="0.4", sol_held_per_wallet="off")
    await paying.lock(to)
    await world.ok(*_grant(paying.wallet, to))

    found = await world.ok("GET", f"/v1/wallets/{paying.id}/sol", key=world.key("viewer"))

    assert found.pop("resets_at").endswith("T00:00:00.000Z")
    assert found == {
        "wallet_id": paying.id,
        "spent_today": format_sol(await _used(world, paying.id)),
        "sol_per_wallet_day": "0.40",
        "held": format_sol(ESCROW_RENT + ALLOWANCE_RENT),
        "sol_held_per_wallet": None,
    }
    error_of(await world.call("GET", "/v1/wallets/wal_none/sol"), 404, "wallet_not_found")


@pytest.mark.sqlite("counts what is sent to SQLite; tests/nodes/test_statements.py counts on PostgreSQL")
async def test_limits_cost_a_payment_one_statement(tmp_path: Path) -> None:
    with sent_to_sqlite("agent-vault.db") as sent:
        async with ServiceWorld(tmp_path, database_url=None, **dict.fromkeys(_LIMITS, "1")) as world:
            wallet, to = await world.wallet(), await world.payee()
            sent.clear()
            for _ in range(3):
                assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"

            own = {one: times for one, times in sent.items() if "fee_payer_use" in one or "sol_limits" in one}
            assert list(own.values()) == [3], own
