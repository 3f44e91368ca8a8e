"""Allowances settled by the keeper: when they end, and at once when their vault is stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable
from app.core.signers import Signer
from app.keeper import jobs, settler
from app.submission.context import Service
from tests.support.allowances import USDC, Purse, allowances_of, grant
from tests.support.escrows import Agent, agent
from tests.support.keeper import PATIENCE, events_of
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STOPS = ["freeze", "freeze with a policy", "another policy", "pause", "rotation", "revocation"]
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


@pytest.mark.parametrize("how", _STOPS)
async def test_stopped_vault_has_its_allowances_settled_at_once(own_world: ServiceWorld, how: str) -> None:
    world = own_world
    paying, other = await _payer(world), await _payer(world)
    purses = [await _granted(world, paying) for _ in range(2)]
    last = await _granted(world, other)

    # No keeper runs here.
    await _stop(world, paying, how)

    gone = [*purses, last] if how == "pause" else purses
    await _until(lambda: _are_gone(world, gone))
    await world.catch_up()
    assert {one.status for one in allowances_of(world, paying)} == {"settled"}
    assert [one.status for one in allowances_of(world, other)] == ["settled" if how == "pause" else "outstanding"]
    assert await paying.balance() == "100.00"


@pytest.mark.parametrize("how", _STOPS)
async def test_keeper_settles_what_the_service_could_not(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world = own_world
    paying, other, keeper = await _payer(world), await _payer(world), world.keeper()
    purses = [await _granted(world, paying) for _ in range(2)]
    await _granted(world, other)
    assert await keeper.tick() == 0
    tried: list[Instruction] = []

    async def unreachable(_service: Service, instruction: Instruction, _signers: object) -> str:
        tried.append(instruction)
        raise ChainUnavailable("cut")

    monkeypatch.setattr(settler, "send", unreachable)

    await _stop(world, paying, how)
    await _until(lambda: _has(tried, 3 if how == "pause" else 2))

    assert await keeper.tick() == (3 if how == "pause" else 2)
    await world.catch_up()
    assert {one.status for one in allowances_of(world, paying)} == {"settled"}
    assert await _are_gone(world, purses)
    assert await paying.balance() == "100.00"


async def test_freeze_is_sent_before_the_settlements_and_waits_for_none(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    paying, done = await _payer(world), asyncio.Event()
    purse = await _granted(world, paying)
    frozen: list[int] = []

    async def slow(service: Service, instruction: Instruction, signers: Sequence[Signer]) -> str:
        frozen.append((await world.fields(Pubkey.from_string(paying.vault)))["frozen"])
        await done.wait()
        return await jobs.send(service, instruction, signers)

    monkeypatch.setattr(settler, "send", slow)
    await world.ok("PATCH", f"/v1/wallets/{paying.id}", {"status": "frozen"})

    # The settlement is still to be sent, and the freeze in force.
    assert await world.accounts(purse.address) != [None]
    assert frozen == [1]
    assert (await world.ok("GET", f"/v1/wallets/{paying.id}"))["status"] == "frozen"
    done.set()
    await _until(lambda: _are_gone(world, [purse]))


async def _stop(world: ServiceWorld, paying: Agent, how: str) -> None:
    path = f"/v1/wallets/{paying.id}"
    if how == "freeze":
        await world.ok("PATCH", path, {"status": "frozen"})
    elif how.endswith("policy"):
        other = await world.policy(allowAllowances=True)
        frozen = {"status": "frozen"} if how.startswith("freeze") else {}
        await world.ok("PATCH", path, {"policyId": other["policy_id"], **frozen})
    elif how == "pause":
        await world.ok("POST", "/v1/organization/pause", {"paused": True})
    elif how == "rotation":
        await world.ok("POST", f"{path}/rotate-token", {})
    else:
        await world.ok("POST", f"{path}/rotate-token", {"ttlSeconds": 60}, key=world.keys["admin"])
    await world.catch_up()


async def _until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await happened():
                return
            await asyncio.sleep(0.01)


async def _has(found: list[Instruction], count: int) -> bool:
    return len(found) == count


async def _are_gone(world: ServiceWorld, purses: list[Purse]) -> bool:
    return all(one is None for one in await world.accounts(*(purse.address for purse in purses)))


async def test_change_of_the_policy_settles_what_an_earlier_version_allowed(own_world: ServiceWorld) -> None:
    world = own_world
    paying, other, keeper = await _payer(world), await _payer(world), world.keeper()
    purse = await _granted(world, paying)
    await _granted(world, other)
    policy = (await world.ok("GET", f"/v1/wallets/{paying.id}"))["policy"]["policy_id"]

    await world.ok("PATCH", f"/v1/policies/{policy}", {"maxPerTx": "20"})
    await world.catch_up()
    await _granted(world, paying)

    assert await keeper.tick() == 1
    await world.catch_up()
    found = {one.counter: one.status for one in allowances_of(world, paying)}
    assert found == {0: "settled", 1: "outstanding"}
    assert [one.status for one in allowances_of(world, other)] == ["outstanding"]
    assert await world.accounts(purse.address) == [None]


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


@pytest.mark.proves("event allowance.overdue")
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
