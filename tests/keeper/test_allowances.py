"""Allowances settled by the keeper: when they end, and at once when their vault is stopped."""

import pytest
from solders.account import Account
from solders.pubkey import Pubkey

from tests.support.allowances import USDC, Purse, allowances_of, grant
from tests.support.escrows import Agent, agent
from tests.support.keeper import events_of
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STATE = 108
"""Where a token account keeps whether it is frozen."""


async def _payer(world: ServiceWorld) -> Agent:
    policy = await world.policy(allowAllowances=True)
    return await agent(world, policy["policy_id"])


async def _granted(world: ServiceWorld, paying: Agent, amount: int = 5 * USDC) -> Purse:
    purse = await grant(world, paying, amount, expires_in=120)
    await world.catch_up()
    return purse


def _freeze_tokens(world: ServiceWorld, tokens: Pubkey, *, frozen: bool) -> None:
    """Freeze or thaw a token account, as the mint's issuer would."""
    bank = world.localnet.chain.bank
    account = bank.get(tokens)
    assert account is not None
    data = bytearray(account.data)
    data[_STATE] = 2 if frozen else 1
    bank.put(tokens, Account(account.lamports, bytes(data), account.owner))


async def test_allowance_is_settled_once_it_has_ended_and_not_before(own_world: ServiceWorld) -> None:
    world = own_world
    paying, keeper = await _payer(world), world.keeper()
    purse = await _granted(world, paying)
    await purse.pay(2 * USDC)
    await world.later(100)
    assert await keeper.tick() == 0

    await world.later(25)
    assert await keeper.tick() == 1

    await world.catch_up()
    [found] = allowances_of(world, paying)
    assert (found.status, found.spent, found.returned) == ("settled", 2 * USDC, 3 * USDC)
    assert await paying.balance() == "98.00"
    assert await world.accounts(purse.address, purse.tokens) == [None, None]
    assert await world.keeper().tick() == 0
    assert await events_of(world, paying.wallet, "allowance.overdue") == []


@pytest.mark.parametrize("how", ["freeze", "pause", "rotation", "revocation"])
async def test_stopped_vault_has_its_allowances_settled_at_once(own_world: ServiceWorld, how: str) -> None:
    world = own_world
    paying, other, keeper = await _payer(world), await _payer(world), world.keeper()
    purses = [await _granted(world, paying) for _ in range(2)]
    await _granted(world, other)
    assert await keeper.tick() == 0

    path = f"/v1/wallets/{paying.id}"
    if how == "freeze":
        await world.ok("PATCH", path, {"status": "frozen"})
    elif how == "pause":
        await world.ok("POST", "/v1/organization/pause", {"paused": True})
    elif how == "rotation":
        await world.ok("POST", f"{path}/rotate-token", {})
    else:
        await world.ok("POST", f"{path}/rotate-token", {"ttlSeconds": 60}, key=world.keys["admin"])
    await world.catch_up()

    assert await keeper.tick() == (3 if how == "pause" else 2)
    await world.catch_up()
    assert {one.status for one in allowances_of(world, paying)} == {"settled"}
    assert [one.status for one in allowances_of(world, other)] == ["settled" if how == "pause" else "outstanding"]
    for purse in purses:
        assert await world.accounts(purse.address) == [None]
    assert await paying.balance() == "100.00"


async def test_freeze_does_not_depend_on_what_cannot_be_settled(own_world: ServiceWorld) -> None:
    world = own_world
    paying, keeper = await _payer(world), world.keeper()
    purse = await _granted(world, paying)
    _freeze_tokens(world, purse.tokens, frozen=True)

    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"status": "frozen"})

    assert (await world.ok("GET", f"/v1/wallets/{paying.id}"))["status"] == "frozen"
    await world.catch_up()
    assert await keeper.tick() == 0
    assert [one.status for one in allowances_of(world, paying)] == ["outstanding"]


async def test_what_cannot_be_settled_in_time_is_a_critical_event(own_world: ServiceWorld) -> None:
    world = own_world
    paying, timer = await _payer(world), [0.0]
    keeper = world.keeper(timer=lambda: timer[0])
    purse = await _granted(world, paying)
    _freeze_tokens(world, purse.tokens, frozen=True)
    await world.later(125)
    assert await keeper.tick() == 0
    assert await events_of(world, paying.wallet, "allowance.overdue") == []

    await world.later(60)
    for _ in range(2):
        timer[0] += 3600
        assert await keeper.tick() == 0
        assert await world.keeper().tick() == 0

    [reported] = await events_of(world, paying.wallet, "allowance.overdue")
    assert (reported["severity"], reported["amount"]) == ("critical", "5.00")
    assert reported["delegate"] == str(purse.delegate.pubkey())
    # After the thaw it is settled after all.
    _freeze_tokens(world, purse.tokens, frozen=False)
    timer[0] += 3600
    assert await keeper.tick() == 1
    await world.catch_up()
    assert [one.status for one in allowances_of(world, paying)] == ["settled"]
