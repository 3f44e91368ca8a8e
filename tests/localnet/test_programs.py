"""Programs loaded from files, and address lookup tables."""

from pathlib import Path

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from app.localnet import Localnet
from tests.support.localnet import CONFIRMED, SOL, Client, ManualClock, client, pay
from tests.support.lookup_tables import lookup_table

MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
VERSIONED = {"maxSupportedTransactionVersion": 0, **CONFIRMED}


async def test_a_program_file_runs_at_its_address_after_every_start(
    rpc: Client, tmp_path: Path, clock: ManualClock
) -> None:
    # Given the memo program in a file
    code = rpc.localnet.chain.bank.get(MEMO)
    assert code is not None
    path = tmp_path / "program.so"
    path.write_bytes(code.data)
    address = Pubkey.new_unique()
    for start in (1, 2):
        async with Localnet.open(tmp_path / "data", {address: path}, clock) as localnet:
            # When it is called
            rpc = client(localnet)
            sender = await rpc.wallet()
            signature = await rpc.send(rpc.signed(sender, Instruction(address, b"hello %d" % start, [])))
            # Then it runs, and its account is executable
            shown = await rpc("getTransaction", signature, VERSIONED)
            assert f'Program log: Memo (len 7): "hello {start}"' in shown["meta"]["logMessages"]
            account = (await rpc("getAccountInfo", str(address), {"encoding": "base64", **CONFIRMED}))["value"]
            assert account["executable"] is True


async def test_lookup_table_addresses_are_resolved_and_in_the_history(rpc: Client, clock: ManualClock) -> None:
    # Given a lookup table with one address
    clock.advance_slots(10)
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    lookup, making = lookup_table(sender.pubkey(), rpc.localnet.chain.slot(), [receiver])
    clock.advance_slots(1)
    for instruction in making:
        await rpc.send(rpc.signed(sender, instruction))
    clock.advance_slots(1)
    # When a payment names its receiver through the table
    message = MessageV0.try_compile(sender.pubkey(), [pay(sender, receiver, SOL // 2)], [lookup], rpc.blockhash())
    assert receiver not in message.account_keys
    signature = await rpc.send(VersionedTransaction(message, [sender]))
    # Then it arrives, and the receiver's history has it
    assert (await rpc("getBalance", str(receiver), CONFIRMED))["value"] == SOL // 2
    shown = await rpc("getTransaction", signature, VERSIONED)
    assert shown["meta"]["loadedAddresses"] == {"writable": [str(receiver)], "readonly": []}
    assert shown["meta"]["postBalances"][2] == SOL // 2
    assert shown["transaction"]["message"]["addressTableLookups"][0]["accountKey"] == str(lookup.key)
    parsed = await rpc("getTransaction", signature, {"encoding": "jsonParsed", **VERSIONED})
    assert parsed["transaction"]["message"]["accountKeys"][-1] == {
        "pubkey": str(receiver),
        "signer": False,
        "source": "lookupTable",
        "writable": True,
    }
    (line,) = await rpc("getSignaturesForAddress", str(receiver), CONFIRMED)
    assert line["signature"] == signature
