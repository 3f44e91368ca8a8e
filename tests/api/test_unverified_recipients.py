"""Payees without a known owner: warned of, refused after the policy, and paid by those who insist."""

from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core.timestamps import now_ms
from app.store.idempotency import find
from app.submission.claim import body_hash
from tests.support.escrows import A2A, Agent, agent, terms
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.unowned import unowned

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CODE = "recipient_unverified"
_ANYWAY: Json = {"allowUnverifiedRecipient": True}
_LOOK_UP = "getMultipleAccounts"
_INCINERATOR = "1nc1nerator11111111111111111111111111111111"
#: An address that lost its last character.
_TRUNCATED = "Ch4pj4sWxf7f65Hfxb2zBuJ4cF6iYryPDDojFG37xRk"


def _knows_nothing(method: str, result: Any) -> Any:
    """A node that lags: it has none of the accounts that it is asked for."""
    return {**result, "value": [None] * len(result["value"])} if method == _LOOK_UP else result


async def _smart_wallet(world: ServiceWorld) -> str:
    """An address off the curve that holds SOL and has no token account."""
    address = unowned()
    await world.localnet.airdrop(Pubkey.from_string(address), 10**9)
    return address


async def _events(world: ServiceWorld, wallet_id: str) -> list[str]:
    page = await world.ok("GET", f"/v1/events?walletId={wallet_id}&limit=100")
    return [one["event"] for one in page["data"]]


async def _allowance(paying: Agent, destination: str, **fields: Any) -> Any:
    body = {"amount": "5", "destination": destination, "delegate": str(Keypair().pubkey()), **fields}
    headers = {"Session-Token": paying.session}
    return await paying.world.call("POST", f"/v1/wallets/{paying.id}/allowances", body, headers=headers)


@pytest.mark.proves("error recipient_unverified", "SimulatePayment(allowUnverifiedRecipient)", "Simulation(warnings)")
@pytest.mark.parametrize("kind", ["token account", "program's address", "incinerator", "truncated"])
async def test_payment_to_an_address_without_an_owner_is_refused(world: ServiceWorld, kind: str) -> None:
    unopened = world.service.addresses.token_account(Keypair().pubkey())
    address = {"token account": str(unopened), "incinerator": _INCINERATOR, "truncated": _TRUNCATED}.get(kind)
    wallet, to = await world.wallet(), address or unowned()

    simulated = await world.ok(
        "POST", "/v1/payments/simulate", {"walletId": wallet["wallet_id"], "to": to, "amount": "1"}
    )
    refused = error_of(await world.pay(wallet, to, "1"), 422, _CODE)

    assert simulated["allowed"]
    assert [one.partition(":")[0] for one in simulated["warnings"]] == [to]
    assert to in refused["message"]
    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert [one["type"] for one in rows] == ["funding"]
    assert await _events(world, wallet["wallet_id"]) == ["wallet.funded", "wallet.created"]
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "100.00"


@pytest.mark.proves("Simulation(warnings)")
async def test_simulation_does_not_warn_of_an_address_with_an_owner(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    known = [str(Keypair().pubkey()), await world.payee(), await _smart_wallet(world), wallet["chain_address"]]
    for to in known:
        body = {"walletId": wallet["wallet_id"], "to": to, "amount": "1"}
        assert (await world.ok("POST", "/v1/payments/simulate", body))["warnings"] == []


@pytest.mark.proves("CreatePayment(allowUnverifiedRecipient)", "PayFromWallet(allowUnverifiedRecipient)")
@pytest.mark.parametrize("role", ["admin", "operator"])
async def test_operator_pays_an_address_without_an_owner_by_override(world: ServiceWorld, role: Any) -> None:
    wallet, to = await world.wallet(), unowned()

    paid = await world.pay(wallet, to, "1", body=_ANYWAY, key=world.key(role))

    assert paid.json()["status"] == "confirmed"
    assert await world.balance(to) == 1_000_000
    # It has a token account now.
    assert (await world.pay(wallet, to, "1")).status_code == 200


@pytest.mark.proves("CreatePayment(allowUnverifiedRecipient)", "CreateEscrow(allowUnverifiedRecipient)")
async def test_agents_override_counts_only_for_a_listed_address(world: ServiceWorld) -> None:
    listed, other = unowned(), unowned()
    policy = await world.policy(allowedRecipients=[listed], **_ANYWAY)
    bound, free = await agent(world, policy["policy_id"]), await agent(world)

    async def pay(by: Agent, to: str, **fields: Any) -> Any:
        return await by.call(
            "POST", "/v1/payments", {"walletId": by.id, "to": to, "amount": "1", "currency": "USDC", **fields}
        )

    error_of(await pay(free, other, **_ANYWAY), 422, _CODE)
    error_of(await pay(bound, listed), 422, _CODE)
    assert (await pay(bound, listed, **_ANYWAY)).json()["status"] == "confirmed"
    error_of(await bound.call("POST", A2A, terms(bound, unowned(), **_ANYWAY)), 402, "policy_violation")
    error_of(await free.call("POST", A2A, terms(free, other, **_ANYWAY)), 422, _CODE)


@pytest.mark.proves("error recipient_unverified")
async def test_violation_comes_before_the_missing_owner(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="4", allowAllowances=True)
    paying, to = await agent(world, policy["policy_id"]), unowned()

    answers = [
        await world.pay(paying.wallet, to, "5"),
        await paying.call("POST", A2A, terms(paying, to, "5")),
        await _allowance(paying, to),
    ]

    for answer in answers:
        assert error_of(answer, 402, "policy_violation")["violation"]["rule"] == "max_per_tx"
    assert (await _events(world, paying.id)).count("transaction.blocked") == 3


async def test_repetition_is_answered_before_the_owner_is_looked_for(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await _smart_wallet(world)
    key = {"idempotencyKey": "owner-then-none"}
    paid = await world.pay(wallet, to, "1", body=key)
    world.line.alter = _knows_nothing
    with world.line.asked() as methods:
        again = await world.pay(wallet, to, "1", body=key)
    world.line.mend()

    assert paid.status_code == 200
    assert again.json() == paid.json()
    assert methods == []


async def test_override_is_part_of_what_an_idempotency_key_names(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), unowned()
    key = {"idempotencyKey": "first-refused-then-insisted"}

    error_of(await world.pay(wallet, to, "1", body=key), 422, _CODE)
    # A refusal leaves the key free.
    paid = await world.pay(wallet, to, "1", body={**key, **_ANYWAY})
    error_of(await world.pay(wallet, to, "1", body=key), 409, "idempotency_conflict")

    assert paid.status_code == 200
    assert (await world.pay(wallet, to, "1", body={**key, **_ANYWAY})).json() == paid.json()


async def test_request_from_before_an_upgrade_keeps_its_fingerprint(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    body = {"wallet_id": wallet["wallet_id"], "to": to, "amount": 1_000_000, "currency": "USDC", "memo": None}
    await world.pay(wallet, to, "1", body={"idempotencyKey": "older"})

    stored = world.service.db.read_now(lambda conn: find(conn, world.org, "older", now_ms()))
    assert stored is not None
    assert stored.body_hash == body_hash(body)


async def test_smart_wallet_with_an_account_is_paid(world: ServiceWorld) -> None:
    paying, to = await agent(world), await _smart_wallet(world)

    escrow = await paying.lock(await _smart_wallet(world))
    paid = await world.pay(paying.wallet, to, "1")

    assert (paid.json()["status"], escrow["status"]) == ("confirmed", "locked")
    assert await world.balance(to) == 1_000_000


async def test_wallet_of_the_service_is_paid_by_id_and_by_address(world: ServiceWorld) -> None:
    paying, receiving = await agent(world), await agent(world)
    for to in (receiving.id, receiving.vault):
        assert (await world.pay(paying.wallet, to, "1")).status_code == 200
        assert (await paying.lock(to))["status"] == "locked"


async def test_payee_with_a_token_account_costs_no_look_up(world: ServiceWorld) -> None:
    wallet, receiving, to = await world.wallet(), await world.wallet(), await world.payee()
    for payee in (to, receiving["wallet_id"], receiving["chain_address"]):
        with world.line.asked() as methods:
            assert (await world.pay(wallet, payee, "1")).status_code == 200
        assert _LOOK_UP not in methods


@pytest.mark.proves("error recipient_unverified")
async def test_node_that_cannot_tell_leads_to_503(world: ServiceWorld) -> None:
    paying, to = await agent(world), unowned()
    world.line.lose_requests = lambda method: method == _LOOK_UP
    try:
        error_of(await world.pay(paying.wallet, to, "1"), 503, "chain_unavailable")
        error_of(await paying.call("POST", A2A, terms(paying, to)), 503, "chain_unavailable")
        body = {"name": "Unsure", "allowedRecipients": [to]}
        error_of(await world.call("POST", "/v1/policies", body), 503, "chain_unavailable")
        body = {"walletId": paying.id, "to": to, "amount": "1"}
        error_of(await world.call("POST", "/v1/payments/simulate", body), 503, "chain_unavailable")
    finally:
        world.line.mend()


async def test_node_that_lacks_a_known_vault_leads_to_503(world: ServiceWorld) -> None:
    vault = (await world.wallet())["chain_address"]
    world.line.alter = _knows_nothing
    try:
        body = {"name": "Stale", "allowedRecipients": [vault]}
        error_of(await world.call("POST", "/v1/policies", body), 503, "chain_unavailable")
    finally:
        world.line.mend()


@pytest.mark.proves("RegisteredRecipient(warnings)")
async def test_domain_at_an_address_without_an_owner_is_refused(world: ServiceWorld) -> None:
    wallet, address = await world.wallet(), unowned()

    put = await world.ok("PUT", "/v1/recipients/nobody.example.com", {"address": address})
    error_of(await world.pay(wallet, "nobody.example.com", "1"), 422, _CODE)
    paid = await world.pay(wallet, "nobody.example.com", "1", body=_ANYWAY)

    assert [one.partition(":")[0] for one in put["warnings"]] == [address]
    assert paid.json()["recipient"] == "nobody.example.com"
    assert await world.balance(address) == 1_000_000


@pytest.mark.proves("CreateEscrow(allowUnverifiedRecipient)")
async def test_escrow_for_an_address_without_an_owner_is_refused(world: ServiceWorld) -> None:
    paying, to = await agent(world), unowned()

    error_of(await world.call("POST", A2A, terms(paying, to)), 422, _CODE)
    assert (await world.ok("GET", f"{A2A}?walletId={paying.id}"))["data"] == []
    locked = await world.ok("POST", A2A, terms(paying, to, **_ANYWAY))

    assert (locked["status"], locked["to_wallet"]) == ("locked", to)


@pytest.mark.proves("GrantAllowance(allowUnverifiedRecipient)")
async def test_allowance_for_an_address_without_an_owner_is_refused(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])

    error_of(await _allowance(paying, unowned()), 422, _CODE)
    # The override opens no account, and a delegate can pay into no other.
    error_of(await _allowance(paying, unowned(), **_ANYWAY), 400, "invalid_recipient")
    error_of(await _allowance(paying, str(Keypair().pubkey())), 400, "invalid_recipient")


@pytest.mark.proves("CreatePolicy(allowUnverifiedRecipient)")
async def test_new_policy_lists_no_address_without_an_owner(world: ServiceWorld) -> None:
    address = unowned()
    body: Json = {"name": "Listing", "allowedRecipients": [str(Keypair().pubkey()), address]}

    refused = error_of(await world.call("POST", "/v1/policies", body), 422, _CODE)
    made = await world.ok("POST", "/v1/policies", {**body, **_ANYWAY})

    assert refused["message"].startswith(f"allowedRecipients: {address}")
    assert address in made["allowed_recipients"]


@pytest.mark.proves("UpdatePolicy(allowUnverifiedRecipient)", "ClonePolicy(allowUnverifiedRecipient)")
async def test_patched_and_cloned_policies_check_new_entries_only(world: ServiceWorld) -> None:
    kept, owned = unowned(), await _smart_wallet(world)
    vault = (await world.wallet())["wallet_id"]
    made = await world.policy(allowedRecipients=[kept], **_ANYWAY)
    path = f"/v1/policies/{made['policy_id']}"

    for method, where, name in (("PATCH", path, {}), ("POST", f"{path}/clone", {"name": "Clone"})):
        added = unowned()
        body = {**name, "allowedRecipients": [kept, added]}
        error_of(await world.call(method, where, body), 422, _CODE)
        owners = [kept, owned, vault, "shop.example.com", str(Keypair().pubkey())]
        changed = await world.ok(method, where, {**name, "allowedRecipients": owners})
        assert {kept, owned, "shop.example.com"} < set(changed["allowed_recipients"])
        assert added in (await world.ok(method, where, {**body, **_ANYWAY}))["allowed_recipients"]
    # What does not name the list is not about it.
    assert (await world.ok("PATCH", path, {"maxPerTx": "5"}))["max_per_tx"] == "5.00"


@pytest.mark.proves("PreviewPolicy(allowUnverifiedRecipient)", "PolicyPreview(warnings)")
async def test_preview_warns_of_new_entries_without_an_owner(world: ServiceWorld) -> None:
    kept, added = unowned(), unowned()
    made = await world.policy(allowedRecipients=[kept], **_ANYWAY)

    body = {"allowedRecipients": [kept, added, str(Keypair().pubkey())]}
    preview = await world.ok("POST", f"/v1/policies/{made['policy_id']}/preview", body)

    assert [one.partition(":")[0] for one in preview["warnings"]] == [added]
