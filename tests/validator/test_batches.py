"""What a delegate pays inside a batch of p-token, which no instruction of a transaction shows by itself."""

import pytest
from solders.instruction import Instruction

from tests.support.allowances import USDC, grant, known, send, settle
from tests.support.escrows import agent
from tests.support.service_world import ServiceWorld

pytestmark = [pytest.mark.validator, pytest.mark.asyncio(loop_scope="module")]

#: The instruction of p-token that runs others: each with its number of accounts and bytes before its data.
_BATCH = 255


def _batch(*parts: Instruction) -> Instruction:
    data = b"".join(bytes([len(one.accounts), len(one.data)]) + bytes(one.data) for one in parts)
    return Instruction(parts[0].program_id, bytes([_BATCH]) + data, [meta for one in parts for meta in one.accounts])


@pytest.mark.parametrize("own_world", ["validator"], indirect=True)
async def test_delegates_transfers_in_a_batch_are_seen(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    payer = await agent(world, policy["policy_id"])
    honest, diverted = await grant(world, payer, 5 * USDC), await grant(world, payer, 2 * USDC)
    elsewhere = (await grant(world, payer, USDC)).destination

    # Given one batch with two transfers for the destination, and one that also pays somebody else
    paid = await send(
        world,
        [_batch(honest.transfer(USDC, honest.destination), honest.transfer(2 * USDC, honest.destination))],
        honest.delegate,
    )
    parts = diverted.transfer(USDC, diverted.destination), diverted.transfer(USDC // 2, elsewhere)
    await send(world, [_batch(*parts)], diverted.delegate)
    for purse in (honest, diverted):
        await settle(world, purse)

    # Then the index has them by the balances
    found = await known(world, honest)
    assert (found.status, found.spent, found.returned) == ("settled", 3 * USDC, 2 * USDC)
    assert found.transfers == [paid]
    assert (await known(world, diverted)).spent == 3 * USDC // 2
    told = (await world.ok("GET", "/v1/events?type=allowance.discrepancy"))["data"]
    assert [(one["seen"], one["arrived"], one["severity"]) for one in told] == [("1.50", "1.00", "critical")]
    assert await world.balance(payer.vault) == world.wallet_record(payer.id).balance
