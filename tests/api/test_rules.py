"""Each of the eight rules, through the API and past it: what it allows and refuses, and that it leaves no trace."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.core.identifiers import new_reference
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Case:
    """A policy's rule, payments that it allows, one that it refuses, and the violation in the answer."""

    rule: str
    code: int
    rules: Json
    allowed: list[tuple[str, str]]
    refused: tuple[str, str]
    limit: str
    attempted: str
    before_refusal: Callable[[], Awaitable[None]] | None = None


async def _max_per_tx(world: ServiceWorld) -> Case:
    to = await world.payee()
    return Case("max_per_tx", 6005, {"maxPerTx": "5"}, [(to, "5")], (to, "5.000001"), "5.00", "5.000001")


async def _max_per_day(world: ServiceWorld) -> Case:
    to = await world.payee()
    return Case("max_per_day", 6007, {"maxPerDay": "10"}, [(to, "6"), (to, "4")], (to, "0.5"), "10.00", "10.50")


async def _max_per_month(world: ServiceWorld) -> Case:
    to = await world.payee()
    return Case("max_per_month", 6008, {"maxPerMonth": "9.5"}, [(to, "9.5")], (to, "0.000001"), "9.50", "9.500001")


async def _velocity_cap(world: ServiceWorld) -> Case:
    to = await world.payee()
    return Case("velocity_cap", 6006, {"velocityCap": 2}, [(to, "1"), (to, "1")], (to, "1"), "2", "3")


async def _allowed_recipients(world: ServiceWorld) -> Case:
    friend, stranger = await world.payee(), await world.payee()
    rules = {"allowedRecipients": [friend]}
    return Case("allowed_recipients", 6003, rules, [(friend, "1")], (stranger, "1"), "1", stranger)


async def _blocked_categories(world: ServiceWorld) -> Case:
    shop, casino = await world.payee(), await world.payee()
    await world.ok("PUT", f"/v1/recipients/{casino}", {"category": "gambling"})
    rules = {"blockedCategories": ["gambling", "weapons"]}
    return Case("blocked_categories", 6004, rules, [(shop, "1")], (casino, "1"), "gambling,weapons", "gambling")


async def _require_co_sign(world: ServiceWorld) -> Case:
    to = await world.payee()
    return Case("require_co_sign", 6009, {"requireCoSign": "10"}, [(to, "10")], (to, "10.5"), "10.00", "10.50")


async def _expiry(world: ServiceWorld) -> Case:
    to = await world.payee()
    # The policy expires in an hour; then the chain's clock goes forward by two.
    at = int(world.clock()) + 3600
    text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def two_hours_pass() -> None:
        world.clock.ahead += 7200

    return Case("expiry", 6002, {"expiry": text}, [(to, "1")], (to, "1"), text, "", two_hours_pass)


@pytest.mark.proves(
    "Conventions: Rules",
    "Conventions: Refusals",
    "Wallets: active to policy_violation",
    "Transactions: new to blocked",
    "rule expiry",
    "rule allowed_recipients",
    "rule blocked_categories",
    "rule max_per_tx",
    "rule velocity_cap",
    "rule max_per_day",
    "rule max_per_month",
    "rule require_co_sign",
    "error policy_violation",
    "event transaction.blocked",
    "Limits: Velocity",
    "Limits: Spending",
    "Policy(max_per_tx, max_per_day, max_per_month, velocity_cap, allowed_recipients, blocked_categories)",
    "Policy(require_co_sign, expiry)",
    "Violation(limit, attempted)",
    "Payment(tx_signature, policy_triggered)",
    "Transaction(violation)",
    "PolicyViolationBody(code, message, docs, request_id, violation, wallet_id, policy_id)",
)
@pytest.mark.parametrize(
    "make",
    [
        _max_per_tx,
        _max_per_day,
        _max_per_month,
        _velocity_cap,
        _allowed_recipients,
        _blocked_categories,
        _require_co_sign,
        _expiry,
    ],
)
async def test_rule_allows_refuses_and_binds_those_who_bypass_the_service(
    world: ServiceWorld, make: Callable[[ServiceWorld], Awaitable[Case]]
) -> None:
    # Given a wallet under a policy with this rule
    case = await make(world)
    policy = await world.policy(**case.rules)
    wallet = await world.wallet(policy["policy_id"])

    # When it makes the payments that the rule allows, they are confirmed
    for to, amount in case.allowed:
        paid = (await world.pay(wallet, to, amount)).json()
        assert paid["status"] == "confirmed", paid
        assert paid["policy_triggered"] is False
    if case.before_refusal is not None:
        await case.before_refusal()

    # When it makes one that the rule refuses, nothing happens on the chain
    to, amount = case.refused
    payee_tokens = world.service.addresses.token_account(Pubkey.from_string(to))
    watched = [*world.vault_accounts(wallet), payee_tokens]
    accounts, signatures = await world.accounts(*watched), await world.signatures(wallet["chain_address"])
    payer = world.service.signers.fee_payer.pubkey()
    lamports = await world.accounts(payer)
    error = error_of(await world.pay(wallet, to, amount), 402, "policy_violation")
    assert error["violation"]["rule"] == case.rule
    assert error["violation"]["limit"] == case.limit
    if case.attempted:
        assert error["violation"]["attempted"] == case.attempted
    else:
        # The time of the attempt, in the format of the limit.
        assert datetime.fromisoformat(error["violation"]["attempted"]) > datetime.fromisoformat(case.limit)
    assert error["wallet_id"] == wallet["wallet_id"]
    assert error["policy_id"] == policy["policy_id"]
    assert await world.accounts(*watched) == accounts
    assert await world.accounts(payer) == lamports
    assert await world.signatures(wallet["chain_address"]) == signatures

    # Then the refusal is on record
    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert rows[0]["status"] == "blocked"
    assert rows[0]["tx_id"] == error["tx_id"]
    assert rows[0]["tx_signature"] is None
    assert rows[0]["policy_triggered"] is True
    assert rows[0]["policy_id"] == policy["policy_id"]
    assert rows[0]["violation"] == {**error["violation"], "budget_id": None}
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "policy_violation"
    events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}&event=transaction.blocked"))["data"]
    assert [one["violation"] for one in events] == [error["violation"]]
    assert events[0]["attempted_amount"] == rows[0]["amount"]

    # When the same payment is sent past the service, the program refuses it by the same rule
    status = await world.land([_direct(world, wallet, to, amount)], world.service.signers.operator)
    assert status.custom_error == case.code
    assert await world.accounts(*watched) == accounts


def _direct(world: ServiceWorld, wallet: Json, to: str, amount: str) -> Any:
    found = world.wallet_record(wallet["wallet_id"])
    owner = Pubkey.from_string(to)
    allowlist = found.policy.allowlist
    return world.build.execute_payment(
        signer=world.service.signers.operator.pubkey(),
        policy=Pubkey.from_string(found.policy.address),
        vault=Pubkey.from_string(found.vault),
        destination=world.service.addresses.token_account(owner),
        amount=round(float(amount) * 1_000_000),
        reference=new_reference(),
        allowlist=Pubkey.from_string(allowlist) if allowlist else None,
        recipient=world.service.addresses.recipient(Pubkey.from_string(world.org), owner),
    )


@pytest.mark.proves("Policy(require_co_sign)", "Payment(policy_triggered)")
async def test_operator_co_signs_above_the_threshold_what_the_session_signs(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="10")
    wallet = await world.wallet(policy["policy_id"])
    session, to = await world.session(wallet), await world.payee()

    paid = (await world.pay(wallet, to, "10.5", session=session)).json()

    assert paid["status"] == "confirmed", paid
    assert paid["policy_triggered"] is True


@pytest.mark.proves("error policy_violation")
async def test_operator_without_a_session_learns_what_co_signing_needs(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="10")
    wallet, to, operator = await world.wallet(policy["policy_id"]), await world.payee(), world.key("operator")

    error = error_of(await world.pay(wallet, to, "10.5", key=operator), 402, "policy_violation")

    assert error["violation"]["rule"] == "require_co_sign"
    assert "no session token" in error["message"]
    assert "header Session-Token" in error["message"]
    assert "approval_id" not in error
    # What the message says helps
    session = await world.session(wallet)
    assert (await world.pay(wallet, to, "10.5", key=operator, session=session)).json()["status"] == "confirmed"


@pytest.mark.proves("error policy_violation", "PolicyViolationBody(tx_id)")
async def test_every_refusal_names_its_own_row_also_when_repeated(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()

    answers = [await world.pay(wallet, to, "6", headers={"Idempotency-Key": "too much"}) for _ in range(2)]

    named = [error_of(one, 402, "policy_violation")["tx_id"] for one in answers]
    rows = [await world.ok("GET", f"/v1/transactions/{tx_id}") for tx_id in named]
    assert [(row["status"], row["tx_id"]) for row in rows] == [("blocked", tx_id) for tx_id in named]
    assert len(set(named)) == 2


async def test_agent_alone_cannot_pay_above_the_co_sign_threshold(world: ServiceWorld) -> None:
    policy = await world.policy(requireCoSign="10")
    wallet = await world.wallet(policy["policy_id"])
    session, to = await world.session(wallet), await world.payee()
    agent = world.key("agent", wallet["wallet_id"])

    assert (await world.pay(wallet, to, "10", session=session, key=agent)).json()["status"] == "confirmed"
    error = error_of(await world.pay(wallet, to, "10.01", session=session, key=agent), 402, "policy_violation")

    assert error["violation"] == {"rule": "require_co_sign", "limit": "10.00", "attempted": "10.01"}


@pytest.mark.proves("Violation(rule)")
async def test_first_rule_in_order_names_the_violation(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="1", maxPerDay="1", requireCoSign="1")
    wallet = await world.wallet(policy["policy_id"])

    error = error_of(await world.pay(wallet, await world.payee(), "2"), 402, "policy_violation")

    assert error["violation"]["rule"] == "max_per_tx"


@pytest.mark.proves("preset pol_locked")
async def test_locked_preset_refuses_every_payment(world: ServiceWorld) -> None:
    wallet = await world.wallet("pol_locked")

    error = error_of(await world.pay(wallet, await world.payee(), "0.000001"), 402, "policy_violation")

    assert error["violation"] == {"rule": "max_per_tx", "limit": "0.00", "attempted": "0.000001"}


@pytest.mark.proves("Policy(allowed_recipients)")
async def test_domain_in_the_allowlist_passes_for_the_address_registered_for_it(world: ServiceWorld) -> None:
    registered, other = await world.payee(), await world.payee()
    policy = await world.policy(allowedRecipients=["Shop.Example.com"])
    assert policy["allowed_recipients"] == ["shop.example.com"]
    await world.ok("PUT", "/v1/recipients/shop.example.com", {"address": registered})
    wallet = await world.wallet(policy["policy_id"])

    by_domain = (await world.pay(wallet, "shop.example.com", "1")).json()
    by_address = (await world.pay(wallet, registered, "1")).json()
    refused = error_of(await world.pay(wallet, other, "1"), 402, "policy_violation")

    assert (by_domain["status"], by_domain["recipient"]) == ("confirmed", "shop.example.com")
    assert (by_address["status"], by_address["recipient"]) == ("confirmed", registered)
    assert refused["violation"]["rule"] == "allowed_recipients"
    assert await world.balance(registered) == 2_000_000


@pytest.mark.proves(
    "POST /v1/payments/simulate",
    "SimulatePayment(walletId, to, amount)",
    "Simulation(wallet_id, recipient, amount, currency, allowed, retry_at, rules)",
    "RuleVerdict(rule, set, passed, limit, attempted, headroom, retry_at)",
)
async def test_simulation_reports_every_rule_and_leaves_no_trace(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5", maxPerDay="8", velocityCap=3)
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    await world.pay(wallet, to, "5")
    accounts, signatures = (
        await world.accounts(*world.vault_accounts(wallet)),
        await world.signatures(wallet["chain_address"]),
    )

    body = {"walletId": wallet["wallet_id"], "to": to, "amount": "4"}
    verdict = await world.ok("POST", "/v1/payments/simulate", body)

    rules = {one["rule"]: one for one in verdict["rules"]}
    assert verdict["allowed"] is False
    assert verdict["usdc_balance"] == "95.00"
    assert (rules["max_per_tx"]["passed"], rules["max_per_tx"]["limit"]) == (True, "5.00")
    assert rules["max_per_tx"]["attempted"] == "4.00"
    assert (rules["max_per_day"]["passed"], rules["max_per_day"]["attempted"]) == (False, "9.00")
    assert rules["max_per_day"]["headroom"] == "3.00"
    assert (rules["velocity_cap"]["passed"], rules["velocity_cap"]["attempted"]) == (True, "2")
    assert rules["max_per_month"]["set"] is False
    assert rules["max_per_month"]["limit"] is None
    retry = datetime.fromisoformat(verdict["retry_at"]).timestamp() - (time.time() + world.clock.ahead)
    assert 23 * 3600 < retry <= 25 * 3600
    assert await world.accounts(*world.vault_accounts(wallet)) == accounts
    assert await world.signatures(wallet["chain_address"]) == signatures
    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert [one["status"] for one in rows if one["type"] == "payment"] == ["confirmed"]


@pytest.mark.proves("SimulatePayment(currency, memo)", "Simulation(allowed, usdc_balance, error)")
async def test_simulation_of_the_payments_own_body_refuses_more_than_the_balance(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(funds="2"), await world.payee()
    body = {"walletId": wallet["wallet_id"], "to": to, "amount": "2.000001", "currency": "USDC"}
    body |= {"memo": "simulated", "idempotencyKey": "simulated"}

    refused = await world.ok("POST", "/v1/payments/simulate", body)
    allowed = await world.ok("POST", "/v1/payments/simulate", {**body, "amount": "2"})

    assert (refused["allowed"], refused["retry_at"], refused["usdc_balance"]) == (False, None, "2.00")
    assert (allowed["allowed"], allowed["error"], refused["error"]) == (True, None, "wallet_insufficient_balance")
    error_of(await world.call("POST", "/v1/payments", body), 422, "wallet_insufficient_balance")
