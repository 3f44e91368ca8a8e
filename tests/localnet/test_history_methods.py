"""Past transactions: their outcome, their order, their encodings."""

import base64
from typing import Any

import pytest
from based58 import b58decode
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from spl.token.instructions import create_idempotent_associated_token_account

from app.localnet.params import Commitment
from app.localnet.tokens import TOKEN_PROGRAM
from tests.support.localnet import CONFIRMED, SOL, Client, ManualClock, distinct, pay, pay_usdc

MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
VERSIONED = {"maxSupportedTransactionVersion": 0, **CONFIRMED}


async def test_a_token_transfer_is_kept_with_its_whole_outcome(rpc: Client, clock: ManualClock) -> None:
    # Given a transfer of 400 of 1,000 micro-USDC
    wallet, source = await rpc.usdc_wallet(1_000)
    other, target = await rpc.usdc_wallet(0)
    mint = rpc.localnet.usdc_mint
    clock.advance_slots(5)
    lamports = (await rpc("getBalance", str(wallet.pubkey()), CONFIRMED))["value"]
    transaction = rpc.signed(wallet, pay_usdc(mint, source, target, wallet.pubkey(), 400))
    signature = await rpc.send(transaction)
    # When it is looked up
    shown = await rpc("getTransaction", signature, VERSIONED)
    # Then it has slot, time, balances, logs and fee
    keys = shown["transaction"]["message"]["accountKeys"]
    meta = shown["meta"]
    assert (shown["slot"], shown["blockTime"], shown["version"]) == (5, int(clock.now), 0)
    assert keys == [str(key) for key in transaction.message.account_keys]
    assert meta["preBalances"][0] == lamports
    assert meta["postBalances"][0] == lamports - 5000
    assert (meta["fee"], meta["err"], meta["status"]) == (5000, None, {"Ok": None})
    assert meta["computeUnitsConsumed"] > 100
    assert meta["logMessages"][0] == f"Program {TOKEN_PROGRAM} invoke [1]"
    assert meta["loadedAddresses"] == {"writable": [], "readonly": []}

    def amounts(which: str) -> dict[str, tuple[str, str]]:
        return {keys[one["accountIndex"]]: (one["owner"], one["uiTokenAmount"]["amount"]) for one in meta[which]}

    owners = str(wallet.pubkey()), str(other.pubkey())
    assert amounts("preTokenBalances") == {str(source): (owners[0], "1000"), str(target): (owners[1], "0")}
    assert amounts("postTokenBalances") == {str(source): (owners[0], "600"), str(target): (owners[1], "400")}
    assert meta["postTokenBalances"][0]["mint"] == str(mint)
    assert meta["postTokenBalances"][0]["programId"] == str(TOKEN_PROGRAM)


async def test_a_failed_transaction_is_kept_with_its_error_and_fee(rpc: Client) -> None:
    sender = await rpc.wallet()
    signature = await rpc.send(rpc.legacy(sender, pay(sender, Keypair().pubkey(), 2 * SOL)), skipPreflight=True)
    shown = await rpc("getTransaction", signature, CONFIRMED)
    assert shown["meta"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert shown["meta"]["preBalances"] == [SOL, 0, 1]
    assert shown["meta"]["postBalances"] == [SOL - 5000, 0, 1]
    assert "version" not in shown
    (line,) = (await rpc("getSignaturesForAddress", str(sender.pubkey()), CONFIRMED))[:1]
    assert line["err"] == shown["meta"]["err"]


async def test_inner_instructions_carry_program_accounts_data_and_depth(rpc: Client) -> None:
    sender = await rpc.wallet()
    create = create_idempotent_associated_token_account(sender.pubkey(), sender.pubkey(), rpc.localnet.usdc_mint)
    signature = await rpc.send(rpc.signed(sender, create))
    shown = await rpc("getTransaction", signature, VERSIONED)
    keys = shown["transaction"]["message"]["accountKeys"]
    (group,) = shown["meta"]["innerInstructions"]
    last = group["instructions"][-1]
    assert group["index"] == 0
    assert keys[last["programIdIndex"]] == str(TOKEN_PROGRAM)
    # InitializeAccount3 with the owner.
    assert b58decode(last["data"].encode()) == bytes([18]) + bytes(sender.pubkey())
    assert last["stackHeight"] == 2
    parsed = await rpc("getTransaction", signature, {"encoding": "jsonParsed", **VERSIONED})
    inner = parsed["meta"]["innerInstructions"][0]["instructions"][-1]
    assert inner == {
        "program": "spl-token",
        "programId": str(TOKEN_PROGRAM),
        "parsed": {
            "type": "initializeAccount3",
            "info": {
                "account": keys[last["accounts"][0]],
                "mint": str(rpc.localnet.usdc_mint),
                "owner": str(sender.pubkey()),
            },
        },
        "stackHeight": 2,
    }
    assert parsed["transaction"]["message"]["accountKeys"][0] == {
        "pubkey": str(sender.pubkey()),
        "signer": True,
        "source": "transaction",
        "writable": True,
    }


@pytest.mark.parametrize("encoding", ["base58", "base64", "binary"])
async def test_a_transaction_comes_back_byte_for_byte(rpc: Client, encoding: str) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    signature = await rpc.send(transaction)
    shown = (await rpc("getTransaction", signature, {"encoding": encoding, **VERSIONED}))["transaction"]
    text = shown if encoding == "binary" else shown[0]
    raw = base64.b64decode(text) if encoding == "base64" else b58decode(text.encode())
    assert VersionedTransaction.from_bytes(raw) == transaction


async def test_a_legacy_only_client_is_refused_versioned_transactions(rpc: Client) -> None:
    sender = await rpc.wallet()
    signature = await rpc.send(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    error = await rpc.failure("getTransaction", signature, CONFIRMED)
    assert error.code == -32015
    assert "maxSupportedTransactionVersion" in error.message


async def test_commitment_rises_from_processed_to_confirmed_to_finalized(rpc: Client, clock: ManualClock) -> None:
    sender = await rpc.wallet()
    transaction = rpc.legacy(sender, pay(sender, sender.pubkey(), 1))
    signature = str(transaction.signatures[0])

    async def level() -> tuple[Any, Any, bool, bool]:
        (status,) = (await rpc("getSignatureStatuses", [signature]))["value"]
        seen = [await rpc("getTransaction", signature, {"commitment": one}) for one in ("confirmed", "finalized")]
        return status["confirmationStatus"], status["confirmations"], bool(seen[0]), bool(seen[1])

    chain = rpc.localnet.chain
    chain.send(transaction, preflight=True)
    # The writer has not run yet.
    status = chain.status(transaction.signatures[0])
    assert status is not None
    assert status[1] is Commitment.PROCESSED
    assert chain.storage.transaction(transaction.signatures[0]) is None
    await rpc.localnet.chain.confirmation(transaction.signatures[0])
    assert await level() == ("confirmed", 0, True, False)
    clock.advance_slots(31)
    assert await level() == ("confirmed", 31, True, False)
    clock.advance_slots(1)
    assert await level() == ("finalized", None, True, True)


async def test_unknown_signatures_are_null(rpc: Client) -> None:
    unknown = "1" * 64
    assert await rpc("getTransaction", unknown, "json") is None
    assert (await rpc("getSignatureStatuses", [unknown], {"searchTransactionHistory": True}))["value"] == [None]
    assert (await rpc("getSignatureStatuses", []))["value"] == []


async def test_the_history_of_an_address_is_paged_newest_first(rpc: Client, clock: ManualClock) -> None:
    # Given 25 transactions in several slots
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    sent = []
    for index in range(25):
        sent.append(await rpc.send(rpc.signed(sender, distinct(), pay(sender, receiver, 1_000_000 + index))))
        clock.advance_slots(index % 2)
    newest_first = sent[::-1]

    async def page(**config: Any) -> list[str]:
        lines = await rpc("getSignaturesForAddress", str(receiver), {**CONFIRMED, **config})
        return [line["signature"] for line in lines]

    # Then the pages have no gap and no overlap
    assert await page() == newest_first
    assert await page(limit=10) == newest_first[:10]
    assert await page(limit=10, before=newest_first[9]) == newest_first[10:20]
    assert await page(limit=10, before=newest_first[19]) == newest_first[20:]
    assert await page(until=newest_first[3]) == newest_first[:3]
    assert await page(before=newest_first[3], until=newest_first[6]) == newest_first[4:6]
    # And a finalized reader sees them 32 slots later
    assert await page(commitment="finalized") == []
    clock.advance_slots(32)
    assert await page(commitment="finalized") == newest_first
    error = await rpc.failure("getSignaturesForAddress", str(receiver), {**CONFIRMED, "before": "1" * 64})
    assert (error.code, error.message) == (-32020, f"Transaction {'1' * 64} not found")


async def test_a_history_entry_has_slot_time_memo_and_status(rpc: Client, clock: ManualClock) -> None:
    clock.advance_slots(10)
    sender = await rpc.wallet()
    note = Instruction(MEMO, "für Öl".encode(), [])
    signature = await rpc.send(rpc.signed(sender, note))
    line = (await rpc("getSignaturesForAddress", str(MEMO), CONFIRMED))[0]
    assert line == {
        "signature": signature,
        "slot": 10,
        "transactionIndex": 1,  # the first in the slot is the airdrop
        "err": None,
        "memo": "[8] für Öl",
        "blockTime": int(clock.now),
        "confirmationStatus": "confirmed",
    }


async def test_awaiting_a_confirmation_in_process(rpc: Client) -> None:
    sender = await rpc.wallet()
    passing = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    failing = rpc.signed(sender, pay(sender, Keypair().pubkey(), 2 * SOL))
    for transaction, err in ((passing, None), (failing, {"InstructionError": [0, {"Custom": 1}]})):
        rpc.localnet.chain.send(transaction, preflight=False)
        signature = transaction.signatures[0]
        assert await rpc.localnet.chain.confirmation(signature) == err
        assert await rpc.localnet.chain.confirmation(signature) == err


async def test_block_has_the_transactions_of_its_slot_in_their_order(rpc: Client, clock: ManualClock) -> None:
    # Given two transactions in slot 5, and others before and after
    sender = await rpc.wallet()
    sent: dict[int, list[str]] = {}
    for slot in (3, 5, 5, 9):
        clock.advance_slots(slot - max([0, *sent]))
        transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1), distinct())
        sent.setdefault(slot, []).append(await rpc.send(transaction))
    clock.advance_slots(1)
    options = {"transactionDetails": "signatures", "rewards": False, **VERSIONED}
    # When the blocks are asked for
    blocks = {slot: await rpc("getBlock", slot, options) for slot in range(10)}
    # Then each has its own, and follows the one before
    assert [blocks[slot]["signatures"] for slot in (3, 5, 9)] == [sent[3], sent[5], sent[9]]
    assert blocks[0]["signatures"]
    assert [blocks[slot]["signatures"] for slot in (1, 2, 4, 6, 7, 8)] == [[]] * 6
    assert {slot: blocks[slot]["parentSlot"] for slot in (0, 1, 9)} == {0: 0, 1: 0, 9: 8}
    assert {slot: blocks[slot]["blockHeight"] for slot in blocks} == {slot: slot for slot in blocks}
    assert blocks[5]["previousBlockhash"] == blocks[4]["blockhash"] != blocks[5]["blockhash"]
    assert blocks[5]["blockTime"] == await rpc("getBlockTime", 5)
    assert set(blocks[5]) == {
        *("blockHeight", "blockTime", "blockhash", "parentSlot", "previousBlockhash", "signatures"),
    }


@pytest.mark.parametrize("encoding", ["json", "jsonParsed", "base64"])
async def test_full_block_shows_transactions_as_get_transaction_does(
    rpc: Client, clock: ManualClock, encoding: str
) -> None:
    sender = await rpc.wallet()
    clock.advance_slots(1)
    signature = await rpc.send(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    clock.advance_slots(1)
    alone = await rpc("getTransaction", signature, {"encoding": encoding, **VERSIONED})
    block = await rpc("getBlock", 1, {"encoding": encoding, **VERSIONED})
    assert block["transactions"] == [{key: alone[key] for key in ("transaction", "meta", "version")}]
    assert block["rewards"] == []
    assert "signatures" not in block
    bare = await rpc("getBlock", 1, {"transactionDetails": "none", **CONFIRMED})
    assert "transactions" not in bare
    assert bare["blockhash"] == block["blockhash"]


async def test_block_that_is_not_complete_or_not_final_is_not_available(rpc: Client, clock: ManualClock) -> None:
    sender = await rpc.wallet()
    clock.advance_slots(40)
    signature = await rpc.send(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    for slot, options in ((40, CONFIRMED), (41, CONFIRMED), (2**40, CONFIRMED), (9, {}), (40, {})):
        error = await rpc.failure("getBlock", slot, options)
        assert (error.code, error.message) == (-32004, f"Block not available for slot {slot}")
    assert (await rpc("getBlock", 8))["transactions"] == []
    clock.advance_slots(33)
    final = {"transactionDetails": "signatures"}
    assert (await rpc("getBlock", 40, final))["signatures"] == [signature]


async def test_block_is_refused_like_a_transaction(rpc: Client, clock: ManualClock) -> None:
    sender = await rpc.wallet()
    await rpc.send(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    clock.advance_slots(1)
    assert (await rpc.failure("getBlock", 0, CONFIRMED)).code == -32015
    assert (await rpc.failure("getBlock", 0, {"commitment": "processed"})).code == -32602
    assert (await rpc.failure("getBlock", 0, {"transactionDetails": "all"})).code == -32602
    assert (await rpc.failure("getBlock", "x")).code == -32602
    assert (await rpc("getBlock", 0, {"transactionDetails": "signatures", **CONFIRMED}))["signatures"]


async def test_block_that_is_not_written_yet_is_not_available(rpc: Client, clock: ManualClock) -> None:
    sender = await rpc.wallet()
    clock.advance_slots(1)
    rpc.localnet.chain.send(rpc.legacy(sender, pay(sender, sender.pubkey(), 1)), preflight=True)
    clock.advance_slots(1)
    # The writer has not run yet.
    assert rpc.localnet.chain.block(1, Commitment.CONFIRMED) is None
    await rpc.localnet.chain.flush()
    assert len(rpc.localnet.chain.block(1, Commitment.CONFIRMED) or ()) == 1
