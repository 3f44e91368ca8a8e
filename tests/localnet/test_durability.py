"""Confirmed transactions survive a crash, and nothing is half written."""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet import DataDirInUseError, Localnet, chain
from app.localnet.params import Commitment
from app.localnet.tokens import read_account
from tests.support.localnet import CONFIRMED, SOL, ManualClock, client, distinct, encoded, pay

PROJECT = Path(__file__).parents[2]


async def test_accounts_history_and_keys_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    # Given a chain with a transfer, a failed transaction and minted tokens
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        rpc = client(localnet)
        wallet, account = await rpc.usdc_wallet(123)
        failed = await rpc.send(rpc.legacy(wallet, pay(wallet, Keypair().pubkey(), 2 * SOL)), skipPreflight=True)
        questions: list[tuple[Any, ...]] = [
            ("getAccountInfo", str(account), {"encoding": "base64", **CONFIRMED}),
            ("getBalance", str(wallet.pubkey()), CONFIRMED),
            ("getTransaction", failed, CONFIRMED),
            ("getSignaturesForAddress", str(wallet.pubkey()), CONFIRMED),
            ("getTokenSupply", str(localnet.usdc_mint), CONFIRMED),
            ("getGenesisHash",),
            ("getTransactionCount", CONFIRMED),
        ]
        answers = [await rpc(*question) for question in questions]
        faucet = localnet.faucet
    # When the chain is opened again
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        # Then every answer is the same, and the chain continues
        rpc = client(localnet)
        assert [await rpc(*question) for question in questions] == answers
        assert localnet.faucet == faucet
        await localnet.mint_usdc(account, 1)
        assert (await rpc("getTokenAccountBalance", str(account), CONFIRMED))["value"]["amount"] == "124"


async def test_slots_and_time_do_not_go_back_across_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        clock.advance_slots(1000)
        assert localnet.chain.slot() == 1000
    clock.advance(-300)
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        assert localnet.chain.slot() == 1000
    clock.advance(3900)
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        assert localnet.chain.slot() == 1000 + 9000


async def test_blockhashes_and_duplicates_are_known_across_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        rpc = client(localnet)
        sender = await rpc.wallet()
        sent = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
        unsent = rpc.signed(sender, pay(sender, sender.pubkey(), 2))
        await rpc.send(sent)
    clock.advance_slots(150)
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        rpc = client(localnet)
        error = await rpc.failure("sendTransaction", encoded(sent), {"encoding": "base64"})
        assert error.data["err"] == "AlreadyProcessed"
        await rpc.send(unsent)


async def test_the_faucets_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    async with Localnet.open(tmp_path, {}) as localnet:
        path = tmp_path / "faucet.json"
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text()) == list(bytes(localnet.faucet))


async def test_a_data_directory_serves_one_chain_at_a_time(tmp_path: Path) -> None:
    async with Localnet.open(tmp_path, {}):
        with pytest.raises(DataDirInUseError):
            Localnet.open(tmp_path, {})
    async with Localnet.open(tmp_path, {}):
        pass


async def test_a_database_of_another_format_is_refused(tmp_path: Path) -> None:
    async with Localnet.open(tmp_path, {}):
        pass
    with sqlite3.connect(tmp_path / "localnet.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ValueError, match="format 99"):
        Localnet.open(tmp_path, {})


async def test_a_full_disk_stops_the_chain_until_it_can_write_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(chain, "_RETRY_SECONDS", 0.01)
    async with Localnet.open(tmp_path, {}, clock) as localnet:
        rpc = client(localnet)
        clock.advance_slots(50)
        sender = await rpc.wallet()
        first = rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1))
        second = rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1))
        # Given a database that cannot grow
        writer = localnet.chain.storage._writer
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        filler = [rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1)) for _ in range(30)]
        for one in (first, *filler):
            localnet.chain.send(one, preflight=True)
        async with asyncio.timeout(30):
            while localnet.chain.healthy:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        # Then nothing more is executed, and unwritten transactions are not confirmed
        error = await rpc.failure("sendTransaction", encoded(second), {"encoding": "base64"})
        assert error.code == -32005
        assert (await rpc.failure("getHealth")).code == -32005
        signature = first.signatures[0]
        assert (await rpc("getSignatureStatuses", [str(signature)]))["value"][0]["confirmationStatus"] == "processed"
        # And no answer says that their slot is over, however long that lasts
        clock.advance_slots(50)
        seen = (await rpc("getBalance", str(sender.pubkey()), CONFIRMED))["context"]["slot"]
        landed = (await rpc("getSignatureStatuses", [str(signature)]))["value"][0]["slot"]
        assert seen == landed == await rpc("getSlot", CONFIRMED)
        assert await rpc("getSlot", {"commitment": "finalized"}) < landed
        # And when there is room again, the chain recovers by itself
        writer.execute("PRAGMA max_page_count = 1000000")
        async with asyncio.timeout(30):
            assert await localnet.chain.confirmation(signature) is None
        await rpc.send(second)


LOAD = """
    import asyncio, itertools, sys
    from pathlib import Path
    from solders.keypair import Keypair
    from solders.pubkey import Pubkey
    from tests.support.localnet import client, distinct, pay_usdc
    from app.localnet import Localnet

    async def main():
        async with Localnet.open(Path(sys.argv[1]), {}) as localnet:
            rpc = client(localnet)
            wallets = [await rpc.usdc_wallet(1_000_000) for _ in range(4)]
            print("accounts", *(account for _, account in wallets), flush=True)

            async def load(index):
                wallet, source = wallets[index]
                for amount in itertools.count(1):
                    target = wallets[(index + amount) % len(wallets)][1]
                    instruction = pay_usdc(localnet.usdc_mint, source, target, wallet.pubkey(), amount % 50 + 1)
                    transaction = rpc.signed(wallet, distinct(), instruction)
                    localnet.chain.send(transaction, preflight=False)
                    await localnet.chain.confirmation(transaction.signatures[0])
                    print("confirmed", transaction.signatures[0], flush=True)

            await asyncio.gather(*(load(index) for index in range(4)))

    asyncio.run(main())
"""


@pytest.mark.parametrize("run", range(3))
async def test_everything_confirmed_survives_a_kill_under_load(tmp_path: Path, run: int) -> None:
    # Given a process that reports each confirmation it sees
    script = tmp_path / "load.py"
    script.write_text(textwrap.dedent(LOAD))
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
        [sys.executable, "-W", "ignore", str(script), str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert process.stdout is not None
    accounts = [Pubkey.from_string(text) for text in process.stdout.readline().split()[1:]]
    # When it is killed after some of them
    wanted = random.Random(run).randint(5, 60)
    lines = [process.stdout.readline() for _ in range(wanted)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    confirmed = [Signature.from_string(line.split()[1]) for line in lines if line.endswith("\n")]
    assert len(confirmed) >= wanted
    # Then each is in the history, and accounts and history agree to the micro-USDC
    async with Localnet.open(tmp_path / "data", {}) as localnet:
        storage = localnet.chain.storage
        assert [one for one in confirmed if storage.status(one) is None] == []
        balances = {}
        for address in accounts:
            account = localnet.chain.account(address, Commitment.CONFIRMED)
            assert account is not None
            token = read_account(account)
            assert token is not None
            balances[str(address)] = token.amount
        assert sum(balances.values()) == 4_000_000
        rpc = client(localnet)
        for address in accounts:
            (newest,) = await rpc("getSignaturesForAddress", str(address), {"limit": 1, **CONFIRMED})
            shown = await rpc("getTransaction", newest["signature"], {"maxSupportedTransactionVersion": 0, **CONFIRMED})
            keys = shown["transaction"]["message"]["accountKeys"]
            after = {keys[one["accountIndex"]]: one["uiTokenAmount"] for one in shown["meta"]["postTokenBalances"]}
            assert int(after[str(address)]["amount"]) == balances[str(address)]
