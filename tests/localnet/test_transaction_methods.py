"""Sending and simulating transactions."""

import base64

import pytest
from based58 import b58encode
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from spl.token.instructions import create_idempotent_associated_token_account

from app.localnet import transactions
from app.localnet.tokens import TOKEN_PROGRAM
from tests.support.localnet import CONFIRMED, SOL, Client, ManualClock, distinct, encoded, pay, pay_usdc

BASE64 = {"encoding": "base64"}
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
ED25519 = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")


async def test_a_sent_transaction_moves_lamports_and_pays_the_fee(rpc: Client) -> None:
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    transaction = rpc.legacy(sender, pay(sender, receiver, SOL // 10))
    assert await rpc.send(transaction) == str(transaction.signatures[0])
    assert (await rpc("getBalance", str(receiver), CONFIRMED))["value"] == SOL // 10
    assert (await rpc("getBalance", str(sender.pubkey()), CONFIRMED))["value"] == SOL - SOL // 10 - 5000


async def test_base58_is_the_default_encoding(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    assert await rpc("sendTransaction", b58encode(bytes(transaction)).decode()) == str(transaction.signatures[0])


async def test_preflight_refuses_a_failing_transaction_in_validator_detail(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, Keypair().pubkey(), 2 * SOL))
    error = await rpc.failure("sendTransaction", encoded(transaction), BASE64)
    assert error.code == -32002
    assert error.message == "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
    assert error.data == {
        "accounts": None,
        "err": {"InstructionError": [0, {"Custom": 1}]},
        "innerInstructions": None,
        "logs": [
            "Program 11111111111111111111111111111111 invoke [1]",
            "Transfer: insufficient lamports 999995000, need 2000000000",
            "Program 11111111111111111111111111111111 failed: custom program error: 0x1",
        ],
        "replacementBlockhash": None,
        "returnData": None,
        "unitsConsumed": 150,
    }
    assert (await rpc("getBalance", str(sender.pubkey()), CONFIRMED))["value"] == SOL


async def test_without_preflight_a_failing_transaction_lands_and_pays_the_fee(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, Keypair().pubkey(), 2 * SOL))
    signature = await rpc.send(transaction, skipPreflight=True)
    (status,) = (await rpc("getSignatureStatuses", [signature]))["value"]
    assert status["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert status["status"] == {"Err": status["err"]}
    assert (await rpc("getBalance", str(sender.pubkey()), CONFIRMED))["value"] == SOL - 5000


async def test_a_blockhash_is_valid_for_150_slots(rpc: Client, clock: ManualClock) -> None:
    sender = await rpc.wallet()
    blockhash = rpc.blockhash()
    self_payment = pay(sender, sender.pubkey(), 1)
    transactions_ = [rpc.signed(sender, distinct(), self_payment, blockhash=blockhash) for _ in range(3)]
    clock.advance_slots(150)
    await rpc.send(transactions_[0])
    clock.advance_slots(1)
    error = await rpc.failure("sendTransaction", encoded(transactions_[1]), BASE64)
    assert (error.code, error.message) == (-32002, "Transaction simulation failed: Blockhash not found")
    assert error.data["err"] == "BlockhashNotFound"
    # Without preflight it is dropped silently.
    signature = await rpc.send(transactions_[2], skipPreflight=True)
    assert (await rpc("getSignatureStatuses", [signature]))["value"] == [None]


async def test_an_unknown_blockhash_is_refused(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1), blockhash=Hash.new_unique())
    assert (await rpc.failure("sendTransaction", encoded(transaction), BASE64)).data["err"] == "BlockhashNotFound"


async def test_the_same_transaction_is_executed_once(rpc: Client, clock: ManualClock) -> None:
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    transaction = rpc.signed(sender, pay(sender, receiver, SOL // 10))
    await rpc.send(transaction)
    clock.advance_slots(100)
    error = await rpc.failure("sendTransaction", encoded(transaction), BASE64)
    assert error.code == -32002
    assert error.data["err"] == "AlreadyProcessed"
    await rpc.send(transaction, skipPreflight=True)
    assert (await rpc("getBalance", str(receiver), CONFIRMED))["value"] == SOL // 10


async def test_duplicates_are_recognised_by_message_not_by_signature(rpc: Client) -> None:
    # A co-signer can sign the same message twice with different signatures, so signatures prove nothing.
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    await rpc.send(transaction)
    resigned = VersionedTransaction.populate(transaction.message, [Signature.default()])
    answer = await rpc("simulateTransaction", encoded(resigned), BASE64)
    assert answer["value"]["err"] == "AlreadyProcessed"


async def test_a_wrong_signature_is_refused(rpc: Client) -> None:
    sender = await rpc.wallet()
    good = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    forged = VersionedTransaction.populate(good.message, [Signature.default()])
    error = await rpc.failure("sendTransaction", encoded(forged), BASE64)
    assert (error.code, error.data["err"]) == (-32002, "SignatureFailure")
    signature = await rpc.send(forged, skipPreflight=True)
    assert (await rpc("getSignatureStatuses", [signature]))["value"] == [None]


async def test_a_payer_without_lamports_is_refused_and_leaves_no_trace(rpc: Client) -> None:
    nobody = Keypair()
    transaction = rpc.signed(nobody, pay(nobody, Keypair().pubkey(), 1))
    error = await rpc.failure("sendTransaction", encoded(transaction), BASE64)
    assert error.data["err"] == "AccountNotFound"
    assert "no record of a prior credit" in error.message
    await rpc.send(transaction, skipPreflight=True)
    assert await rpc("getSignaturesForAddress", str(nobody.pubkey()), CONFIRMED) == []


async def test_no_account_is_left_below_the_rent_exempt_minimum(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, Keypair().pubkey(), 1))
    error = await rpc.failure("sendTransaction", encoded(transaction), BASE64)
    assert error.data["err"] == {"InsufficientFundsForRent": {"account_index": 1}}
    drained = rpc.signed(sender, pay(sender, rpc.localnet.faucet.pubkey(), SOL - 5000 - 1))
    assert (await rpc.failure("sendTransaction", encoded(drained), BASE64)).data["err"] == {
        "InsufficientFundsForRent": {"account_index": 0}
    }
    await rpc.send(rpc.signed(sender, pay(sender, rpc.localnet.faucet.pubkey(), SOL - 5000)))
    assert (await rpc("getAccountInfo", str(sender.pubkey()), CONFIRMED))["value"] is None


@pytest.mark.parametrize("fails", [False, True])
async def test_signatures_checked_by_the_ed25519_program_cost_a_fee_each(rpc: Client, fails: bool) -> None:
    sender = await rpc.wallet()
    message = b"a message"
    signature = bytes(sender.sign_message(message if not fails else b"another"))
    offsets = (48, 0xFFFF, 16, 0xFFFF, 112, len(message), 0xFFFF)
    header = bytes([1, 0]) + b"".join(value.to_bytes(2, "little") for value in offsets)
    check = Instruction(ED25519, header + bytes(sender.pubkey()) + signature + message, [])
    transaction = rpc.signed(sender, check)
    await rpc.send(transaction, skipPreflight=True)
    config = {"maxSupportedTransactionVersion": 0, **CONFIRMED}
    shown = await rpc("getTransaction", str(transaction.signatures[0]), config)
    assert shown["meta"]["fee"] == transactions.fee(transaction.message) == 10_000
    assert (shown["meta"]["err"] is not None) is fails
    assert (await rpc("getBalance", str(sender.pubkey()), CONFIRMED))["value"] == SOL - 10_000


async def test_bytes_that_are_not_a_transaction_are_refused(rpc: Client) -> None:
    sender = await rpc.wallet()
    raw = bytes(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    for broken in (b"", b"\0\0\0", raw[:-8], b"\xff" * 200):
        error = await rpc.failure("sendTransaction", base64.b64encode(broken).decode(), BASE64)
        assert error.code == -32602
        assert error.message.startswith(("failed to deserialize", "invalid transaction"))


async def test_minimum_context_slot_of_send_and_simulate(rpc: Client) -> None:
    sender = await rpc.wallet()
    text = encoded(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    for method in ("sendTransaction", "simulateTransaction"):
        assert (await rpc.failure(method, text, {**BASE64, "minContextSlot": 10**9})).code == -32016


# Simulation


async def test_a_simulation_changes_nothing_and_shows_accounts_as_they_would_be(rpc: Client) -> None:
    _, source = payer = await rpc.usdc_wallet(1_000)
    wallet = payer[0]
    _, target = await rpc.usdc_wallet(0)
    transaction = rpc.signed(wallet, pay_usdc(rpc.localnet.usdc_mint, source, target, wallet.pubkey(), 400))
    accounts = {"addresses": [str(source), str(target)], "encoding": "jsonParsed"}
    value = (await rpc("simulateTransaction", encoded(transaction), {**BASE64, "accounts": accounts}))["value"]
    shown = [account["data"]["parsed"]["info"]["tokenAmount"]["amount"] for account in value["accounts"]]
    assert (value["err"], shown) == (None, ["600", "400"])
    assert value["unitsConsumed"] > 100
    assert value["logs"][0] == f"Program {TOKEN_PROGRAM} invoke [1]"
    assert (await rpc("getTokenAccountBalance", str(source), CONFIRMED))["value"]["amount"] == "1000"


async def test_a_simulation_reports_the_error_with_logs(rpc: Client) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, Keypair().pubkey(), 2 * SOL))
    value = (await rpc("simulateTransaction", encoded(transaction), BASE64))["value"]
    assert value["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert len(value["logs"]) == 3


async def test_a_simulation_needs_signatures_only_when_asked(rpc: Client) -> None:
    sender = await rpc.wallet()
    message = rpc.signed(sender, pay(sender, sender.pubkey(), 1)).message
    unsigned = encoded(VersionedTransaction.populate(message, [Signature.default()]))
    assert (await rpc("simulateTransaction", unsigned, BASE64))["value"]["err"] is None
    checked = await rpc("simulateTransaction", unsigned, {**BASE64, "sigVerify": True})
    assert checked["value"]["err"] == "SignatureFailure"
    both = {**BASE64, "sigVerify": True, "replaceRecentBlockhash": True}
    assert (await rpc.failure("simulateTransaction", unsigned, both)).code == -32602


@pytest.mark.parametrize("kind", ["legacy", "signed"])
async def test_a_simulation_can_replace_the_blockhash(rpc: Client, clock: ManualClock, kind: str) -> None:
    sender = await rpc.wallet()
    old = encoded(getattr(rpc, kind)(sender, pay(sender, sender.pubkey(), 1)))
    clock.advance_slots(500)
    assert (await rpc("simulateTransaction", old, BASE64))["value"]["err"] == "BlockhashNotFound"
    value = (await rpc("simulateTransaction", old, {**BASE64, "replaceRecentBlockhash": True}))["value"]
    assert value["err"] is None
    assert value["replacementBlockhash"] == {"blockhash": str(rpc.blockhash()), "lastValidBlockHeight": 650}


async def test_a_simulation_shows_inner_instructions_and_return_data(rpc: Client) -> None:
    sender = await rpc.wallet()
    create = create_idempotent_associated_token_account(sender.pubkey(), sender.pubkey(), rpc.localnet.usdc_mint)
    transaction = encoded(rpc.signed(sender, create))
    value = (await rpc("simulateTransaction", transaction, {**BASE64, "innerInstructions": True}))["value"]
    (group,) = value["innerInstructions"]
    assert group["index"] == 0
    assert [one["stackHeight"] for one in group["instructions"]] == [2, 2, 2, 2]
    mint = AccountMeta(rpc.localnet.usdc_mint, is_signer=False, is_writable=False)
    get_size = Instruction(TOKEN_PROGRAM, bytes([21]), [mint])
    value = (await rpc("simulateTransaction", encoded(rpc.signed(sender, get_size)), BASE64))["value"]
    size = base64.b64encode((165).to_bytes(8, "little")).decode()
    assert value["returnData"] == {"programId": str(TOKEN_PROGRAM), "data": [size, "base64"]}
    assert value["innerInstructions"] is None


async def test_accounts_of_a_simulation_are_checked(rpc: Client) -> None:
    sender = await rpc.wallet()
    text = encoded(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    address = str(sender.pubkey())
    for accounts, message in (
        ({"addresses": [address] * 9, "encoding": "base64"}, "Too many accounts provided; max 2"),
        ({"addresses": ["x"], "encoding": "base64"}, "Invalid param: WrongSize"),
        ({"addresses": [address], "encoding": "base58"}, "base58 encoding not supported"),
    ):
        error = await rpc.failure("simulateTransaction", text, {**BASE64, "accounts": accounts})
        assert (error.code, error.message) == (-32602, message)


# Airdrops


async def test_two_equal_airdrops_both_arrive(rpc: Client) -> None:
    address = Keypair().pubkey()
    signatures = {await rpc("requestAirdrop", str(address), SOL) for _ in range(2)}
    await rpc.localnet.chain.flush()
    assert len(signatures) == 2
    assert (await rpc("getBalance", str(address), CONFIRMED))["value"] == 2 * SOL


async def test_an_airdrop_beyond_the_faucets_balance_fails_on_chain(rpc: Client) -> None:
    signature = await rpc("requestAirdrop", str(Keypair().pubkey()), 10**18)
    await rpc.localnet.chain.flush()
    (status,) = (await rpc("getSignatureStatuses", [signature]))["value"]
    assert status["err"] == {"InstructionError": [1, {"Custom": 1}]}


async def test_minting_into_a_missing_account_raises(rpc: Client) -> None:
    with pytest.raises(RuntimeError, match="InstructionError"):
        await rpc.localnet.mint_usdc(Keypair().pubkey(), 1)
