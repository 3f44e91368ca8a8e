"""Requests repeated under their keys while the read models lack what they are about: the attempt comes first."""

from collections.abc import Callable
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection, delete

from app.core.identifiers import wallet_id
from app.store.read_tables import escrows, policies, wallets
from tests.support.chain import USDC
from tests.support.escrows import A2A, OUTPUT, Agent, agent, of, shows_output
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_KEY: dict[str, Any] = {"headers": {"Idempotency-Key": "once"}}


async def _cut_off(world: ServiceWorld, method: str, path: str, body: Json, **options: Any) -> str:
    """Make a request that lands and whose answer is lost; return its transaction's id."""
    world.line.lose_answers = lambda name: name == "sendTransaction"
    error = error_of(await world.call(method, path, body, **options), 503, "chain_unavailable")
    world.line.mend()
    return str(error["tx_id"])


async def _forget(world: ServiceWorld) -> None:
    """Empty the read models, as if they were rebuilt; nothing fills them again."""

    def empty(conn: Connection) -> None:
        for table in (wallets, policies, escrows):
            conn.execute(delete(table))

    await world.service.db.write(empty)


def _pays(wallet: Json, to: str) -> tuple[str, str, Json]:
    return "POST", "/v1/payments", {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}


async def test_payment_under_way_is_answered_without_its_wallet(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    sent = await _cut_off(world, *_pays(wallet, to), **_KEY)
    await _forget(world)

    paid = await world.ok(*_pays(wallet, to), **_KEY)

    assert (paid["tx_id"], paid["status"]) == (sent, "confirmed")
    assert await world.balance(to) == USDC


_CHANGES: dict[str, Callable[[Json], tuple[str, str, Json]]] = {
    "fund": lambda one: ("POST", f"/v1/wallets/{one['wallet_id']}/fund", {"amount": "1", "currency": "USDC"}),
    "fund batch": lambda one: (
        "POST",
        "/v1/wallets/fund-batch",
        {"allocations": [{"walletId": one["wallet_id"], "amount": "1"}], "currency": "USDC"},
    ),
    "withdraw": lambda one: ("POST", f"/v1/wallets/{one['wallet_id']}/withdraw", {"amount": "1", "currency": "USDC"}),
    "freeze": lambda one: ("PATCH", f"/v1/wallets/{one['wallet_id']}", {"status": "frozen"}),
    "rotate": lambda one: ("POST", f"/v1/wallets/{one['wallet_id']}/rotate-token", {}),
    "create wallet": lambda _: ("POST", "/v1/wallets", {"agentId": "new", "label": "New", "policyId": "pol_moderate"}),
    "clone": lambda _: ("POST", "/v1/policies/pol_moderate/clone", {"name": "Clone"}),
    "escrow": lambda one: (
        "POST",
        A2A,
        {
            "fromWallet": one["wallet_id"],
            "toWallet": one["other"],
            "amount": "1",
            "currency": "USDC",
            "taskDescription": "Work",
        },
    ),
}


@pytest.mark.parametrize("name", _CHANGES)
async def test_change_under_way_is_never_refused(own_world: ServiceWorld, name: str) -> None:
    world = own_world
    wallet = await world.wallet()
    request = _CHANGES[name](wallet | {"other": (await world.wallet(funds=None))["wallet_id"]})
    await _cut_off(world, *request, **_KEY)
    await _forget(world)

    # Until the read models have it again, no answer is final: neither a refusal nor a second transaction
    assert (await world.call(*request, **_KEY)).status_code in {200, 503}
    await world.service.projector.rebuild()

    if name != "rotate":
        sends = world.line.methods.count("sendTransaction")
        await world.ok(*request, **_KEY)
        assert world.line.methods.count("sendTransaction") == sends


def _grants(agent: Agent, owner: str) -> tuple[str, str, Json]:
    body = {"amount": "1", "destination": owner, "delegate": str(Keypair().pubkey())}
    return "POST", f"/v1/wallets/{agent.id}/allowances", body


@pytest.mark.proves("Idempotency: Answer pending")
@pytest.mark.parametrize("name", ["fund", "fund batch", "withdraw", "allowance"])
async def test_repetition_of_what_was_pending_is_told_what_became_of_it(own_world: ServiceWorld, name: str) -> None:
    # Given a change that lands, but is not seen on the chain in time
    world = own_world
    policy = await world.policy(allowAllowances=True)
    paying = await agent(world, policy["policy_id"])
    request = _grants(paying, await world.payee()) if name == "allowance" else _CHANGES[name](paying.wallet)
    options: dict[str, Any] = {"headers": {"Session-Token": paying.session, **_KEY["headers"]}}
    await world.restart(confirm_timeout=0.2)
    world.line.lose_requests = lambda method: method in {"getTransaction", "getSignaturesForAddress"}
    pending = await world.ok(*request, **options)
    sends = world.line.methods.count("sendTransaction")

    # When the chain is seen again
    world.line.mend()
    again = await world.ok(*request, **options)

    # Then its outcome is the answer, from then on, and nothing was sent twice
    status = {"withdraw": "transaction_status"}.get(name, "status")
    assert (pending[status], again[status]) == ("pending", "outstanding" if name == "allowance" else "confirmed")
    assert await world.ok(*request, **options) == again
    assert world.line.methods.count("sendTransaction") == sends


async def test_step_of_an_escrow_under_way_is_never_refused(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world, funds=None)
    made = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")
    world.line.lose_answers = lambda name: name == "sendTransaction"
    step = ("POST", of(made, "complete"), shows_output())
    error_of(await receiving.call(*step, **_KEY), 503, "chain_unavailable")
    world.line.mend()
    await _forget(world)

    error_of(await receiving.call(*step, **_KEY), 503, "chain_unavailable")
    await world.service.projector.rebuild()
    assert (await receiving.call(*step, **_KEY)).json()["status"] == "released"


async def test_wallet_whose_creation_is_pending_is_not_denied(own_world: ServiceWorld) -> None:
    world = own_world
    body = {"agentId": "slow", "label": "Slow", "policyId": "pol_moderate"}
    tx_id = await _cut_off(world, "POST", "/v1/wallets", body)
    address = world.service.addresses.vault(Pubkey.from_string(world.org), "slow")
    await _forget(world)

    error = error_of(await world.call("GET", f"/v1/wallets/{wallet_id(address)}"), 503, "chain_unavailable")

    assert error["tx_id"] == tx_id
    other = wallet_id(world.service.addresses.vault(Pubkey.from_string(world.org), "other"))
    error_of(await world.call("GET", f"/v1/wallets/{other}"), 404, "wallet_not_found")
