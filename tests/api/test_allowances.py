"""Allowances over HTTP: granted, paid by their delegates on the embedded chain, settled."""

from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.consumption import Consumption
from tests.support.allowances import USDC, Purse, grant
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Granted:
    """An allowance as the API answered it, and its delegate's purse."""

    answer: Json
    purse: Purse

    @property
    def id(self) -> str:
        return str(self.answer["allowance_id"])


def _path(paying: Agent) -> str:
    return f"/v1/wallets/{paying.id}/allowances"


def _body(amount: str, destination: str, delegate: Keypair, **fields: object) -> Json:
    return {"amount": amount, "destination": destination, "delegate": str(delegate.pubkey()), **fields}


async def _ask(paying: Agent, amount: str = "5", **fields: object) -> tuple[httpx.Response, Keypair, str]:
    """Have an admin's key ask with the session's token, and return the answer, the delegate and the recipient."""
    delegate, owner = Keypair(), await paying.world.payee()
    key = str(fields.pop("key", paying.world.keys["admin"]))
    headers = {"Session-Token": paying.session} if fields.pop("session", True) else {}
    body = _body(amount, owner, delegate, **fields)
    return await paying.world.call("POST", _path(paying), body, key=key, headers=headers), delegate, owner


async def _granted(paying: Agent, amount: str = "5", **fields: object) -> Granted:
    response, delegate, owner = await _ask(paying, amount, **fields)
    assert response.status_code == 200, response.text
    made, world = response.json(), paying.world
    address = Pubkey.from_string(made["chain_address"])
    return Granted(made, Purse(world, address, delegate, owner, Pubkey.from_string(made["destination"])))


async def _settled(paying: Agent, one: Granted, **options: object) -> Json:
    return await paying.world.ok("POST", f"{_path(paying)}/{one.id}/settle", {}, **options)


async def _consumed(world: ServiceWorld, address: str | Pubkey) -> Consumption:
    return Consumption.at((await world.fields(address))["ledger"], world.service.clock.now())


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="payer")
async def _payer(world: ServiceWorld) -> Agent:
    """An agent with a team budget, whose policy permits allowances."""
    budget = await world.ok("POST", "/v1/budgets", {"name": "Team", "maxPerDay": "500"})
    policy = await world.policy(allowAllowances=True, maxPerTx="50", maxPerDay="400")
    paying = await agent(world, policy["policy_id"])
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"budgetId": budget["budget_id"]})
    paying.wallet["budget_id"] = budget["budget_id"]
    return paying


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/allowances",
    "POST /v1/wallets/{wallet_id}/allowances/{allowance_id}/settle",
    "GrantAllowance(amount, delegate, expiresIn, reference)",
    "Allowance(allowance_id, id, wallet_id, amount, currency, status, delegate, reference, chain_address)",
    "Allowance(token_account, expires_at, created_at, tx_id, tx_signature, spent_amount, returned_amount)",
    "Allowance(settled_at, settlement_signature, transfers)",
)
async def test_delegate_pays_and_everything_agrees_with_the_chain(world: ServiceWorld, payer: Agent) -> None:
    before, day = float(await payer.balance()), (await _consumed(world, payer.vault)).day
    one = await _granted(payer, "5", expiresIn=90, reference="ab" * 16)

    assert (one.answer["status"], one.answer["amount"], one.answer["reference"]) == ("outstanding", "5.00", "ab" * 16)
    assert (one.answer["recipient"], one.answer["spent_amount"]) == (one.purse.owner, None)
    assert float(await payer.balance()) == before - 5
    assert await world.service.chain.token_balance(one.purse.tokens) == 5 * USDC
    signature = await one.purse.pay(3 * USDC)
    assert await world.balance(one.purse.owner) == 3 * USDC
    ended = await _settled(payer, one)

    assert (ended["status"], ended["spent_amount"], ended["returned_amount"]) == ("settled", "3.00", "2.00")
    assert float(await payer.balance()) == before - 3
    assert (await _consumed(world, payer.vault)).day == day + 3 * USDC
    [budget] = (await world.ok("GET", "/v1/budgets"))["data"]
    shown = await world.ok("GET", f"/v1/budgets/{budget['budget_id']}")
    assert shown["consumption"] == {
        **dict.fromkeys(("day", "month", "total"), "3.00"),
        "payments_in_hour": 1,
        "held": "0.00",
    }
    assert shown["headroom"]["day"] == "497.00"

    await world.service.indexer.check(late=False)
    await world.catch_up()
    [found, *_] = (await world.ok("GET", _path(payer), key=payer.key))["data"]
    assert found["transfers"] == [signature]
    paid = await world.ok("GET", f"/v1/payments/{ended['tx_id']}")
    assert (paid["type"], paid["amount"], paid["status"], paid["recipient"]) == (
        "payment",
        "5.00",
        "confirmed",
        one.purse.owner,
    )
    # The agent may settle with its session, and not by its key alone.
    path = f"{_path(payer)}/{one.id}/settle"
    assert (await payer.ok("POST", path, {}))["spent_amount"] == "3.00"
    error_of(await world.call("POST", path, {}, key=payer.key), 401, "session_token_invalid")


@pytest.mark.proves("Wallet(held_amount)", "PolicyViolationBody(open_allowances)", "BudgetConsumption(held)")
@pytest.mark.proves("Simulation(open_allowances)")
async def test_held_money_shows_and_its_refusal_names_the_allowance(world: ServiceWorld) -> None:
    budget = await world.ok("POST", "/v1/budgets", {"name": "Held", "maxPerDay": "500"})
    policy = await world.policy(allowAllowances=True, maxPerDay="10")
    paying = await agent(world, policy["policy_id"])
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"budgetId": budget["budget_id"]})
    one, to = await _granted(paying, "6"), await world.payee()
    body = {"walletId": paying.id, "to": to, "amount": "5", "currency": "USDC"}

    assert (await world.ok("GET", f"/v1/wallets/{paying.id}"))["held_amount"] == "6.00"
    shown = await world.ok("GET", f"/v1/budgets/{budget['budget_id']}")
    assert (shown["consumption"]["held"], shown["headroom"]["day"]) == ("6.00", "494.00")
    refused = error_of(await world.call("POST", "/v1/payments", body), 402, "policy_violation")
    assert refused["violation"] == {"rule": "max_per_day", "limit": "10.00", "attempted": "11.00"}
    assert refused["open_allowances"] == [one.id]
    simulated = await world.ok("POST", "/v1/payments/simulate", body)
    assert (simulated["retry_at"], simulated["open_allowances"]) == (None, [one.id])
    assert (await world.ok("POST", "/v1/payments/simulate", {**body, "amount": "1"}))["open_allowances"] == []
    # Without the held money, the payment would be refused too, so no allowance is named.
    beyond = error_of(await world.call("POST", "/v1/payments", {**body, "amount": "10.01"}), 402, "policy_violation")
    assert "open_allowances" not in beyond

    await _settled(paying, one)
    assert (await world.ok("GET", f"/v1/wallets/{paying.id}"))["held_amount"] == "0.00"
    assert (await world.ok("POST", "/v1/payments", body))["status"] == "confirmed"


@pytest.mark.proves("POST /v1/wallets/{wallet_id}/allowances")
@pytest.mark.proves("PolicyViolationBody(open_allowances)")
async def test_budget_names_an_allowance_of_a_wallet_that_has_left_it(world: ServiceWorld) -> None:
    budget = await world.ok("POST", "/v1/budgets", {"name": "Left", "maxPerDay": "10"})
    policy = await world.policy(allowAllowances=True)
    leaving, staying = [await agent(world, policy["policy_id"]) for _ in range(2)]
    for one in (leaving, staying):
        await world.ok("PATCH", f"/v1/wallets/{one.id}", {"budgetId": budget["budget_id"]})
    held = await _granted(leaving, "6")
    await world.ok("PATCH", f"/v1/wallets/{leaving.id}", {"budgetId": None})
    body = {"walletId": staying.id, "to": await world.payee(), "amount": "5", "currency": "USDC"}

    refused = error_of(await world.call("POST", "/v1/payments", body), 402, "policy_violation")

    assert (refused["violation"]["rule"], refused["open_allowances"]) == ("budget_max_per_day", [held.id])
    await _settled(leaving, held)


async def test_session_key_alone_cannot_grant(world: ServiceWorld, payer: Agent) -> None:
    for key in (payer.key, world.key("viewer")):
        response, *_ = await _ask(payer, key=key)
        error_of(response, 403, "insufficient_permissions")
    # And past the service the program refuses it: `operator` must sign.
    signers = world.service.signers
    owner, vault = await world.payee(), Pubkey.from_string(payer.vault)
    fields = await world.fields(vault)
    granting = world.build.grant_allowance(
        payer=signers.fee_payer_address,
        signer=payer.session_key.pubkey(),
        operator=payer.session_key.pubkey(),
        policy=fields["policy"],
        vault=vault,
        destination=world.service.addresses.token_account(Pubkey.from_string(owner)),
        delegate=Keypair().pubkey(),
        counter=fields["allowance_counter"],
        amount=USDC,
        reference=bytes(16),
        expires_at=world.service.clock.now() + 60,
        budget=fields["budget"],
    )
    status = await world.land([granting], payer.session_key)
    assert status.err is not None
    assert (await world.fields(vault))["allowance_counter"] == fields["allowance_counter"]


async def test_grant_repeated_under_its_key_is_one(world: ServiceWorld, payer: Agent) -> None:
    delegate, owner = Keypair(), await world.payee()
    body = _body("1", owner, delegate, idempotencyKey="once")
    headers = {"Session-Token": payer.session}
    first = await world.ok("POST", _path(payer), body, headers=headers)
    assert await world.ok("POST", _path(payer), body, headers=headers) == first
    other = await world.call("POST", _path(payer), {**body, "amount": "2"}, headers=headers)
    error_of(other, 409, "idempotency_conflict")
    await world.ok("POST", f"{_path(payer)}/{first['allowance_id']}/settle", {})


@pytest.mark.proves("error allowances_not_allowed")
async def test_policy_refuses_as_it_does_payments(world: ServiceWorld, payer: Agent) -> None:
    response, *_ = await _ask(payer, "51")
    refused = error_of(response, 402, "policy_violation")
    assert refused["violation"] == {"rule": "max_per_tx", "limit": "50.00", "attempted": "51.00"}
    row = await world.ok("GET", f"/v1/transactions/{refused['tx_id']}")
    assert (row["type"], row["status"], row["amount"]) == ("payment", "blocked", "51.00")
    plain = await agent(world, (await world.policy())["policy_id"])
    response, *_ = await _ask(plain)
    error_of(response, 422, "allowances_not_allowed")
    response, *_ = await _ask(payer, "49.5", expiresIn=180)
    poor = await agent(world, world.wallet_record(payer.id).policy.policy_id, funds="1")
    assert response.status_code == 200
    await world.ok("POST", f"{_path(payer)}/{response.json()['allowance_id']}/settle", {})
    response, *_ = await _ask(poor, "2")
    error_of(response, 422, "wallet_insufficient_balance")


@pytest.mark.proves("error allowance_not_found", "GrantAllowance(destination, delegate, expiresIn, reference)")
async def test_bad_input_is_refused_and_nothing_is_set_aside(world: ServiceWorld, payer: Agent) -> None:
    owner, delegate = await world.payee(), Keypair()
    before = await payer.balance()
    for fields, status, code in (
        ({"destination": str(Keypair().pubkey())}, 400, "invalid_recipient"),
        ({"destination": "shop.example.com"}, 400, "invalid_recipient"),
        ({"destination": str(world.service.addresses.mint)}, 400, "invalid_recipient"),
        ({"destination": payer.vault}, 400, "invalid_recipient"),
        ({"delegate": "me"}, 400, "invalid_request"),
        ({"delegate": payer.vault}, 400, "invalid_request"),
        ({"delegate": str(world.service.signers.fee_payer_address)}, 400, "invalid_request"),
        ({"delegate": str(payer.session_key.pubkey())}, 400, "invalid_request"),
        ({"delegate": str(world.service.signers.operator_address)}, 400, "invalid_request"),
        ({"amount": "0"}, 400, "invalid_amount"),
        ({"amount": 1}, 400, "invalid_amount"),
        ({"expiresIn": 181}, 400, "invalid_request"),
        ({"expiresIn": 4}, 400, "invalid_request"),
        ({"reference": "short"}, 400, "invalid_request"),
    ):
        body = {**_body("1", owner, delegate), **fields}
        error_of(await world.call("POST", _path(payer), body), status, code)
    assert await payer.balance() == before
    error_of(
        await world.call("POST", f"{_path(payer)}/alw_4vJ9JU1bJJE96FWSJKvHsm/settle", {}), 404, "allowance_not_found"
    )
    error_of(await world.call("GET", "/v1/wallets/wal_4vJ9JU1bJJE96FWSJKvHsm/allowances"), 404, "wallet_not_found")
    stranger = await agent(world, funds=None)
    error_of(await world.call("GET", _path(payer), key=stranger.key), 403, "insufficient_permissions")


@pytest.mark.proves("GrantAllowance(destination)", "Allowance(recipient, destination)")
async def test_destination_is_an_account_or_its_owner(world: ServiceWorld, payer: Agent) -> None:
    owner = await world.payee()
    tokens = str(world.service.addresses.token_account(Pubkey.from_string(owner)))
    for destination in (owner, tokens):
        made = await world.ok("POST", _path(payer), _body("1", destination, Keypair()))
        assert (made["recipient"], made["destination"]) == (owner, tokens)
        await world.ok("POST", f"{_path(payer)}/{made['allowance_id']}/settle", {})


async def test_above_the_threshold_an_approval_of_its_kind_is_needed(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True, requireCoSign="1")
    paying = await agent(world, policy["policy_id"])
    owner, delegate = await world.payee(), Keypair()
    headers = {"Session-Token": paying.session}
    body = _body("2", owner, delegate)
    refused = error_of(await world.call("POST", _path(paying), body, headers=headers), 402, "policy_violation")
    assert refused["violation"]["rule"] == "require_co_sign"
    approval = await world.ok("GET", f"/v1/approvals/{refused['approval_id']}")
    assert (approval["type"], approval["recipient"]) == ("allowance", owner)
    # Without the session there is nothing to approve.
    alone = error_of(await world.call("POST", _path(paying), body), 402, "policy_violation")
    assert "approval_id" not in alone or alone["approval_id"] is None

    await world.ok("POST", f"/v1/approvals/{refused['approval_id']}/approve", {})
    made = await world.ok("POST", _path(paying), body, headers=headers)

    assert made["status"] == "outstanding"
    assert (await world.ok("GET", f"/v1/approvals/{refused['approval_id']}"))["status"] == "used"
    await world.ok("POST", f"{_path(paying)}/{made['allowance_id']}/settle", {})


@pytest.mark.proves(
    "GET /v1/wallets/{wallet_id}/allowances",
    "error too_many_allowances",
    "GET /v1/wallets/{wallet_id}/allowances(status, limit, cursor)",
)
async def test_wallet_has_four_at_a_time_and_a_daily_number(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])
    made = [await _granted(paying, "1") for _ in range(4)]
    response, *_ = await _ask(paying, "1")
    error_of(response, 422, "too_many_allowances")
    page = await world.ok("GET", f"{_path(paying)}?status=outstanding&limit=3")
    assert ([one["allowance_id"] for one in page["data"]], page["has_more"]) == ([one.id for one in made[:0:-1]], True)
    for one in made:
        await _settled(paying, one)
    before = world.service.settings
    world.service.settings = before.model_copy(update={"allowances_per_day": 4})
    try:
        response, *_ = await _ask(paying, "1")
    finally:
        world.service.settings = before
    assert "24 hours" in error_of(response, 422, "too_many_allowances")["message"]
    await _settled(paying, await _granted(paying, "1"))


async def test_change_past_the_service_is_looked_at_again(world: ServiceWorld, payer: Agent) -> None:
    # Another node granted one: the number that this one knows is over, and with it the address.
    purse = await grant(world, payer, USDC)
    one = await _granted(payer, "1")
    assert one.answer["chain_address"] != str(purse.address)
    await _settled(payer, one)


@pytest.mark.proves("action allowance.grant")
async def test_grant_and_its_delegate_are_on_the_audit_log(world: ServiceWorld, payer: Agent) -> None:
    one = await _granted(payer, "1")
    await _settled(payer, one)
    [entry, *_] = [
        found for found in (await world.ok("GET", "/v1/audit-log"))["data"] if found["action"] == "allowance.grant"
    ]
    assert entry["object"] == one.id
    assert entry["details"]["delegate"] == str(one.purse.delegate.pubkey())


async def test_frozen_wallet_and_paused_organisation_grant_nothing(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"status": "frozen"})
    response, *_ = await _ask(paying, "1")
    error_of(response, 422, "wallet_frozen")
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"status": "active"})
    await _settled(paying, await _granted(paying, "1"))


async def test_preview_knows_what_came_back(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])
    await _settled(paying, await _granted(paying, "5"))
    assert (await world.pay(paying.wallet, await world.payee(), "5")).status_code == 200

    # Both together exceed the limit, unless the first gives back what was not spent.
    preview = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"maxPerDay": "6"})

    assert (preview["payments"], preview["newly_blocked"]) == (2, 0)
