"""Slots, times, blockhashes, fees and health."""

import base64

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import to_bytes_versioned

from app.localnet.timeline import SLOTS_PER_EPOCH
from tests.support.localnet import CONFIRMED, Client, ManualClock, distinct, pay


async def test_health_version_identity_and_genesis_hash(rpc: Client) -> None:
    assert await rpc("getHealth") == "ok"
    assert set(await rpc("getVersion")) == {"solana-core", "feature-set"}
    assert await rpc("getIdentity") == {"identity": str(rpc.localnet.faucet.pubkey())}
    assert await rpc("getGenesisHash") == str(rpc.localnet.chain.timeline.genesis_hash)


async def test_a_slot_lasts_400_milliseconds(rpc: Client, clock: ManualClock) -> None:
    clock.advance(0.399)
    assert await rpc("getSlot", {"commitment": "processed"}) == 0
    clock.advance(0.001)
    assert await rpc("getSlot", {"commitment": "processed"}) == 1
    clock.advance(40)
    assert await rpc("getSlot", CONFIRMED) == 101
    assert await rpc("getBlockHeight", CONFIRMED) == 101


async def test_finalized_is_the_default_and_32_slots_behind(rpc: Client, clock: ManualClock) -> None:
    assert await rpc("getSlot") == 0
    clock.advance_slots(100)
    assert await rpc("getSlot") == 68
    assert await rpc("getSlot", {"commitment": "unheard of"}) == 68


async def test_slots_and_time_do_not_follow_a_clock_that_steps_back(rpc: Client, clock: ManualClock) -> None:
    clock.advance_slots(50)
    assert await rpc("getSlot", CONFIRMED) == 50
    clock.advance(-3600)
    assert await rpc("getSlot", CONFIRMED) == 50
    clock.advance(3600.4)
    assert await rpc("getSlot", CONFIRMED) == 51


async def test_block_time_of_a_past_slot_and_error_for_a_future_one(rpc: Client, clock: ManualClock) -> None:
    start = int(clock.now)
    clock.advance_slots(10)
    assert await rpc("getBlockTime", 0) == start
    assert await rpc("getBlockTime", 10) == start + 4
    error = await rpc.failure("getBlockTime", 11)
    assert (error.code, error.message) == (-32004, "Block not available for slot 11")


async def test_epochs(rpc: Client, clock: ManualClock) -> None:
    clock.advance_slots(SLOTS_PER_EPOCH + 7)
    info = await rpc("getEpochInfo", CONFIRMED)
    assert info == {
        "absoluteSlot": SLOTS_PER_EPOCH + 7,
        "blockHeight": SLOTS_PER_EPOCH + 7,
        "epoch": 1,
        "slotIndex": 7,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": 0,
    }
    assert (await rpc("getEpochSchedule"))["slotsPerEpoch"] == SLOTS_PER_EPOCH


async def test_latest_blockhash_changes_every_slot_and_is_valid_for_150(rpc: Client, clock: ManualClock) -> None:
    clock.advance_slots(1000)
    first = await rpc("getLatestBlockhash", CONFIRMED)
    assert first["context"]["slot"] == 1000
    assert first["value"]["lastValidBlockHeight"] == 1150
    blockhash = first["value"]["blockhash"]
    clock.advance_slots(1)
    assert (await rpc("getLatestBlockhash", CONFIRMED))["value"]["blockhash"] != blockhash
    clock.advance_slots(149)
    assert (await rpc("isBlockhashValid", blockhash, CONFIRMED))["value"] is True
    clock.advance_slots(1)
    assert (await rpc("isBlockhashValid", blockhash, CONFIRMED))["value"] is False
    assert (await rpc("isBlockhashValid", str(Hash.default())))["value"] is False


async def test_fee_of_a_message_is_5000_lamports_a_signature(rpc: Client, clock: ManualClock) -> None:
    payer = Keypair()
    transaction = rpc.signed(payer, distinct(), pay(payer, payer.pubkey(), 1))
    message = base64.b64encode(to_bytes_versioned(transaction.message)).decode()
    assert (await rpc("getFeeForMessage", message, CONFIRMED))["value"] == 5000
    clock.advance_slots(151)
    assert (await rpc("getFeeForMessage", message, CONFIRMED))["value"] is None


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("x", "invalid base64 encoding: InvalidLength(1)"),
        ("!!!!", "invalid base64 encoding: InvalidByte(0, 33)"),
        ("AAAA", "failed to deserialize"),
    ],
)
async def test_fee_of_a_malformed_message(rpc: Client, message: str, said: str) -> None:
    error = await rpc.failure("getFeeForMessage", message)
    assert error.code == -32602
    assert said in error.message


async def test_rent_exempt_minimum(rpc: Client) -> None:
    assert await rpc("getMinimumBalanceForRentExemption", 165) == 2_039_280
    assert (await rpc.failure("getMinimumBalanceForRentExemption", 1 << 40)).code == -32600


async def test_minor_methods_that_wallets_call(rpc: Client) -> None:
    assert await rpc("getFirstAvailableBlock") == 0
    assert await rpc("minimumLedgerSlot") == 0
    recent = await rpc("getRecentPrioritizationFees", [str(Keypair().pubkey())])
    assert recent[-1] == {"slot": await rpc("getSlot", {"commitment": "processed"}), "prioritizationFee": 0}
    assert recent == await rpc("getRecentPrioritizationFees")
    assert await rpc("getTransactionCount", CONFIRMED) == 0


async def test_minimum_context_slot(rpc: Client, clock: ManualClock) -> None:
    clock.advance_slots(9)
    assert await rpc("getSlot", {"commitment": "confirmed", "minContextSlot": 9}) == 9
    error = await rpc.failure("getSlot", {"commitment": "confirmed", "minContextSlot": 10})
    assert (error.code, error.data) == (-32016, {"contextSlot": 9})
