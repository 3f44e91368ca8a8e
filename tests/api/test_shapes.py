"""The shapes of answers, field by field, as clients of the API read them; and the quickstart's shapes."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.escrows import agent, of, shows_output
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_WALLET = {
    "wallet_id",
    "id",
    "chain_address",
    "agent_id",
    "label",
    "usdc_balance",
    "held_amount",
    "policy",
    "budget_id",
    "warnings",
    "status",
    "tags",
    "created_at",
}
_ATTACHED = {"policy_id", "id", "name", "max_per_tx", "max_per_day", "max_per_month"}
_POLICY = {
    "policy_id",
    "id",
    "name",
    "max_per_tx",
    "max_per_day",
    "max_per_month",
    "velocity_cap",
    "max_open_escrows",
    "allow_allowances",
    "allowed_recipients",
    "blocked_categories",
    "require_co_sign",
    "new_recipient_cap",
    "approvals",
    "expiry",
    "x402_hosts",
    "opens_accounts",
    "wallet_count",
    "version",
    "created_at",
}
_PAYMENT = {
    "tx_id",
    "id",
    "wallet_id",
    "recipient",
    "amount",
    "currency",
    "status",
    "tx_signature",
    "on_chain_slot",
    "policy_triggered",
    "memo",
    "timestamp",
}
_TRANSACTION_ONLY = {
    "type",
    "policy_id",
    "agent_attestation_hash",
    "explorer_url_1",
    "explorer_url_2",
    "violation",
    "refusals",
    "x402",
    "paid_request",
}
_ESCROW = {
    "escrow_id",
    "from_wallet",
    "to_wallet",
    "amount",
    "status",
    "chain_address",
    "expires_at",
    "created_at",
}
_INTEGERS = {
    "velocity_cap",
    "max_open_escrows",
    "wallet_count",
    "version",
    "on_chain_slot",
    "rows",
    "attempt",
    "status_code",
    "duration_ms",
    "refusals",
}
_TIMES = re.compile(r"(.*_at|timestamp|expiry)$")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")
_MONEY = re.compile(r"(amount|.*_amount|usdc_balance|org_balance.*|max_per_.*|require_co_sign)$")


def _check_values(value: Any, name: str = "") -> None:
    """Check that money is decimal strings, times are UTC, and only counts are numbers."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(inner, key)
    elif isinstance(value, list):
        for inner in value:
            _check_values(inner, name)
    elif isinstance(value, str):
        if _TIMES.match(name):
            assert _UTC.fullmatch(value), (name, value)
        if _MONEY.match(name):
            assert re.fullmatch(r"\d+\.\d{2,6}", value), (name, value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        assert isinstance(value, int), (name, value)
        assert name in _INTEGERS, (name, value)


@pytest.mark.proves(
    "GET /v1/wallets/{wallet_id}",
    "Wallet(policy)",
    "WalletDetail(wallet_id, id, chain_address, agent_id, label, usdc_balance, policy, budget_id)",
    "WalletDetail(held_amount, warnings, status, tags, created_at, updated_at, last_transaction_at)",
)
async def test_wallet_shows_its_times_in_the_get_answer_and_not_in_lists(world: ServiceWorld) -> None:
    made = await world.wallet(funds=None, tags=["shape"])
    path = f"/v1/wallets/{made['wallet_id']}"
    [listed] = (await world.ok("GET", "/v1/wallets?tags=shape"))["data"]
    got = await world.ok("GET", path)

    assert set(made) == set(listed) == _WALLET
    assert set(got) == _WALLET | {"updated_at", "last_transaction_at"}
    assert set(made["policy"]) == _ATTACHED
    assert listed == made == {name: got[name] for name in made}
    assert (got["updated_at"], got["last_transaction_at"]) == (got["created_at"], None)

    funded = await world.ok("POST", f"{path}/fund", {"amount": "1", "currency": "USDC"})
    later = await world.ok("GET", path)

    assert later["last_transaction_at"] >= made["created_at"]
    assert {"wallet_id", "funded_amount", "usdc_balance", "org_balance_remaining"} <= set(funded)
    _check_values([made, got, funded, later])


@pytest.mark.proves("Policy(wallet_count, created_at)")
async def test_policy_says_every_rule_and_how_many_wallets_it_has(world: ServiceWorld) -> None:
    made = await world.policy()
    listed = (await world.ok("GET", "/v1/policies"))["data"]

    assert all(set(one) == _POLICY for one in (made, *listed))
    assert made["wallet_count"] == 0
    await world.wallet(made["policy_id"], funds=None)
    [found] = [one for one in (await world.ok("GET", "/v1/policies"))["data"] if one["policy_id"] == made["policy_id"]]
    assert found["wallet_count"] == 1
    _check_values(listed)


@pytest.mark.proves(
    "GET /v1/policies",
    "preset pol_conservative",
    "preset pol_moderate",
    "preset pol_permissive",
    "preset pol_locked",
    "error policy_immutable",
)
async def test_presets_have_their_documented_limits(world: ServiceWorld) -> None:
    found = (await world.ok("GET", "/v1/policies"))["data"]

    limits = ("max_per_tx", "max_per_day", "max_per_month", "velocity_cap")
    assert {one["policy_id"]: [one[name] for name in limits] for one in found[:4]} == {
        "pol_conservative": ["10.00", "50.00", "500.00", 10],
        "pol_moderate": ["100.00", "500.00", "5000.00", 60],
        "pol_permissive": ["1000.00", "10000.00", "100000.00", 600],
        "pol_locked": ["0.00", None, None, None],
    }
    for one in found[:4]:
        error_of(
            await world.call("PATCH", f"/v1/policies/{one['policy_id']}", {"maxPerTx": "1"}), 422, "policy_immutable"
        )
        error_of(await world.call("DELETE", f"/v1/policies/{one['policy_id']}"), 422, "policy_immutable")


@pytest.mark.proves("Policy(blocked_categories)")
async def test_categories_are_the_twenty_that_are_named(world: ServiceWorld) -> None:
    named = [
        "uncategorized",
        "adult",
        "alcohol_tobacco",
        "cash_out",
        "crypto_exchange",
        "dating",
        "drugs",
        "financial",
        "gambling",
        "gift_cards",
        "lottery",
        "marketplace",
        "mixer",
        "nft",
        "pharmacy",
        "political",
        "privacy_tool",
        "securities",
        "subscription",
        "weapons",
    ]

    made = await world.policy(blockedCategories=named)

    assert sorted(made["blocked_categories"]) == sorted(named)


@pytest.mark.proves(
    "Conventions: Money",
    "Conventions: Times",
    "GET /v1/transactions/{tx_id}",
    "error policy_violation",
    "Payment(timestamp)",
    "Transaction(tx_id, id, wallet_id, recipient, amount, currency, status, tx_signature, on_chain_slot)",
    "Transaction(policy_triggered, memo, timestamp, explorer_url_1, explorer_url_2)",
)
async def test_payment_and_transaction_have_their_fields(world: ServiceWorld) -> None:
    wallet, to = await world.wallet("pol_conservative"), await world.payee()
    paid = (await world.pay(wallet, to, "1", body={"memo": "order 7"})).json()
    blocked = error_of(await world.pay(wallet, to, "11"), 402, "policy_violation")
    shown = await world.ok("GET", f"/v1/payments/{paid['tx_id']}")
    listed = (await world.ok("GET", f"/v1/transactions?walletId={wallet['wallet_id']}"))["data"]

    assert set(paid) == _PAYMENT
    assert set(shown) == _PAYMENT | _TRANSACTION_ONLY
    assert all(set(one) == set(shown) for one in listed)
    assert set(blocked) == {"code", "message", "docs", "request_id", "violation", "wallet_id", "policy_id", "tx_id"}
    assert set(blocked["violation"]) == {"rule", "limit", "attempted"}
    for number in (1, 2):
        assert re.match(rf"https://\S+/{paid['tx_signature']}", shown[f"explorer_url_{number}"])
    assert shown["explorer_url_1"] != shown["explorer_url_2"]
    _check_values([paid, shown, listed])


@pytest.mark.proves("type a2a_send", "type escrow_refund")
async def test_escrow_says_where_the_money_is_and_its_refund_is_a_row(world: ServiceWorld) -> None:
    paying, receiving = await agent(world), await agent(world, funds=None)
    made = await paying.lock(receiving)
    done = await receiving.ok("POST", of(made, "complete"), shows_output())
    disputed = await paying.lock(receiving)
    await paying.ok("POST", of(disputed, "dispute"), {"reason": "late"})
    await world.ok("POST", of(disputed, "resolve"), {"decision": "refund"})
    listed = (await world.ok("GET", f"/v1/payments/a2a?walletId={paying.id}"))["data"]

    assert set(made) >= _ESCROW
    assert all(set(one) == set(made) for one in (done, *listed))
    [back] = (await world.ok("GET", f"/v1/wallets/{paying.id}/transactions?type=escrow_refund"))["data"]
    assert (back["wallet_id"], back["amount"], back["status"]) == (paying.id, "10.00", "confirmed")
    assert back["recipient"] == paying.vault
    sent = (await world.ok("GET", f"/v1/transactions?type=a2a_send&walletId={paying.id}"))["data"]
    assert [row["recipient"] for row in sent] == [receiving.vault] * 2
    _check_values([made, done, listed, back])


@pytest.mark.proves("Limits: Timeout of an escrow", "CreateEscrow(timeoutSeconds)", "Escrow(expires_at, created_at)")
async def test_lifetime_of_an_escrow_is_an_hour_unless_told(world: ServiceWorld) -> None:
    paying = await agent(world)
    receiver = await world.payee()

    for asked, seconds in (({}, 3_600), ({"timeoutSeconds": 60}, 60)):
        made = await paying.lock(receiver, "1", **asked)
        lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
        assert timedelta(seconds=seconds) <= lifetime <= timedelta(seconds=seconds + 2)


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/rotate-token",
    "Webhook(created_at, updated_at)",
    "Export(export_id, id, estimated_ready_at, created_at)",
    "SessionToken(wallet_id, id)",
)
async def test_everything_else_has_its_fields(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    token = await world.ok("POST", f"{path}/rotate-token", {"ttlSeconds": 3600})
    rule = {"enabled": True, "triggerBelow": "5", "topupAmount": "10"}
    topup = await world.ok("PUT", f"{path}/auto-topup", rule)
    webhook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/", "events": ["*"]})
    export = await world.ok("POST", "/v1/transactions/export", {"format": "csv", "walletId": wallet["wallet_id"]})

    assert set(token) == {"wallet_id", "id", "session_token", "expires_at"}
    assert (topup["enabled"], topup["trigger_below"], topup["topup_amount"]) == (True, "5.00", "10.00")
    assert {"webhook_id", "url", "events", "signing_secret", "created_at"} <= set(webhook)
    assert export["export_id"].startswith("exp_")
    assert (export["status"], export["download_url"]) == ("processing", None)
    assert export["estimated_ready_at"] >= export["created_at"]
    _check_values([token, topup, webhook, export])


@pytest.mark.proves("Conventions: Times", "Event(summary, timestamp)")
async def test_event_has_milliseconds_a_summary_and_its_wallet(world: ServiceWorld) -> None:
    wallet = await world.wallet()

    events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}"))["data"]

    assert [one["event"] for one in events] == ["wallet.funded", "wallet.created"]
    for one in events:
        assert {"event_id", "event", "severity", "summary", "timestamp", "wallet_id"} <= set(one)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["timestamp"])
        assert (one["wallet_id"], one["severity"]) == (wallet["wallet_id"], "info")
        assert one["summary"]
    _check_values(events)


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/pay",
    "Quickstart: Create a policy",
    "Quickstart: Create a wallet",
    "Quickstart: Fund",
    "Quickstart: Pay",
    "PayFromWallet(currency, memo)",
    "Funded(wallet_id, id)",
    "QuickPayment(tx_id, id, wallet_id, recipient, amount, currency, status, tx_signature, on_chain_slot)",
    "QuickPayment(policy_triggered, memo, timestamp, signature)",
)
async def test_quickstart_takes_and_answers_its_own_shapes(world: ServiceWorld) -> None:
    to = await world.payee()
    rules = {
        "name": "Quick start",
        "max_per_tx": "5.00",
        "max_per_day": "20.00",
        "max_per_month": "100.00",
        "velocity_cap": 10,
        "allowed_recipients": [to],
    }
    policy = await world.ok("POST", "/v1/policies", rules)
    body = {"agent_id": "quick-start", "label": "Quick", "owner_org": "test", "policy_id": policy["id"]}
    wallet = await world.ok("POST", "/v1/wallets", body)
    funded = await world.ok("POST", f"/v1/wallets/{wallet['id']}/fund", {"amount": "10.00", "currency": "USDC"})
    payment = {"to": to, "amount": "1.50", "currency": "USDC", "memo": "hello"}
    paid = await world.ok("POST", f"/v1/wallets/{wallet['id']}/pay", payment)

    assert rules.items() <= policy.items()
    assert (wallet["usdc_balance"], wallet["policy"]["id"]) == ("0.00", policy["id"])
    assert wallet["chain_address"]
    assert {name: funded[name] for name in ("wallet_id", "usdc_balance")} == {
        "wallet_id": wallet["id"],
        "usdc_balance": "10.00",
    }
    assert (paid["status"], paid["signature"]) == ("confirmed", paid["tx_signature"])
    assert isinstance(paid["on_chain_slot"], int)
    too_much = await world.call("POST", f"/v1/wallets/{wallet['id']}/pay", {**payment, "amount": "5.01"})
    assert error_of(too_much, 402, "policy_violation")["violation"]["rule"] == "max_per_tx"
    elsewhere = {**payment, "to": await world.payee()}
    refused = await world.call("POST", f"/v1/wallets/{wallet['id']}/pay", elsewhere)
    assert error_of(refused, 402, "policy_violation")["violation"]["rule"] == "allowed_recipients"


@pytest.mark.proves("DELETE /v1/wallets/{wallet_id}", "Wallets: any to archived")
async def test_wallet_is_archived_from_every_status_once_it_is_empty(world: ServiceWorld) -> None:
    frozen, emptied, refused = [await world.wallet("pol_conservative", funds=None) for _ in range(3)]
    to = await world.payee()
    await world.ok("PATCH", f"/v1/wallets/{frozen['wallet_id']}", {"status": "frozen"})
    await world.ok("POST", f"/v1/wallets/{emptied['wallet_id']}/fund", {"amount": "1"})
    await world.pay(emptied, to, "1")
    error_of(await world.pay(refused, to, "11"), 402, "policy_violation")

    for wallet, before in ((frozen, "frozen"), (emptied, "unfunded"), (refused, "policy_violation")):
        path = f"/v1/wallets/{wallet['wallet_id']}"
        assert (await world.ok("GET", path))["status"] == before
        assert (await world.ok("DELETE", path))["status"] == "archived"
    rows = (await world.ok("GET", f"/v1/wallets/{emptied['wallet_id']}/transactions"))["data"]
    assert [row["type"] for row in rows] == ["payment", "funding"]


@pytest.mark.proves(
    "CreateWallet(agentId, label, policyId)",
    "CreateEscrow(fromWallet, toWallet, amount, currency, taskDescription)",
    "CompleteEscrow(proofType, proof)",
    "CreatePolicy(name)",
    "ClonePolicy(name)",
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/wallets", {"agentId": "left-out", "label": "Left out", "policyId": "pol_moderate"}),
        ("/v1/policies", {"name": "Left out"}),
        ("/v1/policies/pol_moderate/clone", {"name": "Left out"}),
        (
            "/v1/payments/a2a",
            {"fromWallet": "wal_x", "toWallet": "wal_y", "amount": "1", "currency": "USDC", "taskDescription": "Work"},
        ),
        ("/v1/payments/a2a/escrow_x/complete", shows_output()),
    ],
)
async def test_required_field_left_out_is_refused(world: ServiceWorld, path: str, body: Json) -> None:
    for left in body:
        given = {name: value for name, value in body.items() if name != left}
        error = error_of(await world.call("POST", path, given), 400, "invalid_request")
        assert left in error["message"]


@pytest.mark.proves("WithdrawFromWallet(currency)")
async def test_withdrawal_takes_the_currency_too_and_no_other(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="2")
    path = f"/v1/wallets/{wallet['wallet_id']}/withdraw"

    assert (await world.ok("POST", path, {"amount": "1", "currency": "USDC"}))["usdc_balance"] == "1.00"
    error_of(await world.call("POST", path, {"amount": "1", "currency": "EURC"}), 400, "invalid_request")


@pytest.mark.proves("Conventions: Version", "Conventions: Success")
async def test_every_path_names_its_version_and_success_is_200(world: ServiceWorld) -> None:
    document: Json = (await world.client.get("/openapi.json")).json()

    for path, methods in document["paths"].items():
        assert path.startswith("/v1/")
        for operation in methods.values():
            assert [status for status in operation["responses"] if status < "400"] == ["200"]
