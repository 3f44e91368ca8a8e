"""Accounts, token accounts and searches."""

import base64
from typing import Any

import pytest
from solders.keypair import Keypair
from spl.token.instructions import CloseAccountParams, close_account

from app.localnet.encoding import zstd_frame
from app.localnet.params import Commitment
from app.localnet.tokens import TOKEN_PROGRAM
from tests.support.localnet import CONFIRMED, SOL, Client, pay, pay_usdc

PROCESSED = {"commitment": "processed"}
SYSTEM = "11111111111111111111111111111111"


async def test_an_account_that_does_not_exist_is_null(rpc: Client) -> None:
    nobody = str(Keypair().pubkey())
    assert (await rpc("getAccountInfo", nobody))["value"] is None
    assert (await rpc("getBalance", nobody))["value"] == 0
    assert (await rpc("getMultipleAccounts", [nobody, SYSTEM]))["value"][0] is None


@pytest.mark.parametrize(
    ("config", "data"),
    [
        ({}, "jTEcPtEhU4YpbFXpEag"),
        ({"encoding": "binary"}, "jTEcPtEhU4YpbFXpEag"),
        ({"encoding": "base58"}, ["jTEcPtEhU4YpbFXpEag", "base58"]),
        ({"encoding": "base64"}, ["c3lzdGVtX3Byb2dyYW0=", "base64"]),
        ({"encoding": "jsonParsed"}, ["c3lzdGVtX3Byb2dyYW0=", "base64"]),
        ({"encoding": "base64", "dataSlice": {"offset": 2, "length": 3}}, ["c3Rl", "base64"]),
        ({"encoding": "base64", "dataSlice": {"offset": 2000, "length": 3}}, ["", "base64"]),
    ],
)
async def test_encodings_of_an_account(rpc: Client, config: dict[str, Any], data: Any) -> None:
    account = (await rpc("getAccountInfo", SYSTEM, config))["value"]
    assert account == {
        "data": data,
        "executable": True,
        "lamports": 1,
        "owner": "NativeLoader1111111111111111111111111111111",
        "rentEpoch": 0,
        "space": 14,
    }


async def test_zstd_encoding_is_a_frame_of_the_bytes(rpc: Client) -> None:
    account = (await rpc("getAccountInfo", SYSTEM, {"encoding": "base64+zstd"}))["value"]
    frame = base64.b64decode(account["data"][0])
    assert account["data"][1] == "base64+zstd"
    # Magic number, header with an 8-byte content size, one last raw block of 14 bytes.
    assert frame == bytes.fromhex("28b52ffd e0 0e00000000000000 710000") + b"system_program"


def test_zstd_frame_splits_large_data_into_blocks() -> None:
    data = bytes(range(256)) * 1200
    frame = zstd_frame(data)
    position, out, last = 13, b"", False
    while not last:
        header = int.from_bytes(frame[position : position + 3], "little")
        last, size = bool(header & 1), header >> 3
        out += frame[position + 3 : position + 3 + size]
        position += 3 + size
    assert (out, position) == (data, len(frame))


async def test_long_data_is_refused_in_base58(rpc: Client) -> None:
    _, account = await rpc.usdc_wallet(0)
    error = await rpc.failure("getAccountInfo", str(account), {"encoding": "base58", **CONFIRMED})
    assert error.code == -32600
    assert "128 bytes" in error.message
    sliced = {"encoding": "base58", "dataSlice": {"offset": 0, "length": 32}, **CONFIRMED}
    data = (await rpc("getAccountInfo", str(account), sliced))["value"]["data"]
    assert data == [str(rpc.localnet.usdc_mint), "base58"]


async def test_usdc_mint_exists_from_the_start_under_the_faucets_authority(rpc: Client) -> None:
    mint = str(rpc.localnet.usdc_mint)
    assert mint == "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
    shown = (await rpc("getAccountInfo", mint, {"encoding": "jsonParsed"}))["value"]
    assert shown["data"]["parsed"] == {
        "type": "mint",
        "info": {
            "decimals": 6,
            "freezeAuthority": None,
            "isInitialized": True,
            "mintAuthority": str(rpc.localnet.faucet.pubkey()),
            "supply": "0",
        },
    }


async def test_minted_usdc_shows_in_balance_supply_and_parsed_account(rpc: Client) -> None:
    wallet, account = await rpc.usdc_wallet(1_234_500)
    amount = {"uiAmount": 1.2345, "decimals": 6, "amount": "1234500", "uiAmountString": "1.2345"}
    assert (await rpc("getTokenAccountBalance", str(account), CONFIRMED))["value"] == amount
    assert (await rpc("getTokenSupply", str(rpc.localnet.usdc_mint), CONFIRMED))["value"] == amount
    shown = (await rpc("getAccountInfo", str(account), {"encoding": "jsonParsed", **CONFIRMED}))["value"]
    assert shown["data"]["program"] == "spl-token"
    assert shown["data"]["parsed"]["info"] == {
        "mint": str(rpc.localnet.usdc_mint),
        "owner": str(wallet.pubkey()),
        "tokenAmount": amount,
        "state": "initialized",
        "isNative": False,
    }


async def test_confirmed_reads_see_written_and_processed_reads_executed_state(rpc: Client) -> None:
    # Given a confirmed balance
    wallet = await rpc.wallet()
    receiver = Keypair().pubkey()
    # When a transfer has executed and the writer has not run yet
    rpc.localnet.chain.send(rpc.signed(wallet, pay(wallet, receiver, SOL // 2)), preflight=True)
    chain = rpc.localnet.chain
    on_disk = (Commitment.CONFIRMED, Commitment.FINALIZED)
    before = [chain.account(key, level) for level in on_disk for key in (receiver, wallet.pubkey())]
    # Then confirmed and finalized reads see the state before it, processed reads the state after it
    assert [account.lamports if account else 0 for account in before] == [0, SOL, 0, SOL]
    processed = chain.account(receiver, Commitment.PROCESSED)
    assert processed is not None
    assert processed.lamports == SOL // 2
    # And once it is written, they agree
    await rpc.localnet.chain.flush()
    assert (await rpc("getBalance", str(receiver), CONFIRMED))["value"] == SOL // 2


async def test_token_accounts_of_a_wallet_by_mint_and_by_program(rpc: Client) -> None:
    wallet, account = await rpc.usdc_wallet(7)
    await rpc.usdc_wallet(8)
    for wanted in ({"mint": str(rpc.localnet.usdc_mint)}, {"programId": str(TOKEN_PROGRAM)}):
        for commitment in (CONFIRMED, PROCESSED):
            config = {**commitment, "encoding": "base64"}
            found = await rpc("getTokenAccountsByOwner", str(wallet.pubkey()), wanted, config)
            assert [one["pubkey"] for one in found["value"]] == [str(account)]


async def test_program_accounts_with_filters(rpc: Client) -> None:
    wallet, account = await rpc.usdc_wallet(5)
    await rpc.usdc_wallet(5)
    program, mint = str(TOKEN_PROGRAM), str(rpc.localnet.usdc_mint)

    async def found(*filters: Any, **config: Any) -> list[str]:
        config = {"encoding": "base64", "filters": list(filters), **CONFIRMED, **config}
        return [one["pubkey"] for one in await rpc("getProgramAccounts", program, config)]

    of_wallet = {"memcmp": {"offset": 32, "bytes": str(wallet.pubkey())}}
    assert len(await found()) == 3
    assert len(await found({"dataSize": 165})) == 2
    assert await found({"dataSize": 82}) == [mint]
    assert len(await found("tokenAccountState")) == 2
    assert await found(of_wallet) == [str(account)]
    assert await found(of_wallet, {"dataSize": 165}, commitment="processed") == [str(account)]
    assert await found(of_wallet, {"dataSize": 82}) == []
    five = base64.b64encode((5).to_bytes(8, "little")).decode()
    assert len(await found({"memcmp": {"offset": 64, "bytes": five, "encoding": "base64"}})) == 2
    assert await found({"memcmp": {"offset": 2**63, "bytes": "2"}}) == []


async def test_program_accounts_with_context_and_slice(rpc: Client) -> None:
    _, account = await rpc.usdc_wallet(5)
    config = {"encoding": "base64", "withContext": True, "dataSlice": {"offset": 64, "length": 8}, **CONFIRMED}
    answer = await rpc("getProgramAccounts", str(TOKEN_PROGRAM), {**config, "filters": [{"dataSize": 165}]})
    (found,) = answer["value"]
    assert answer["context"]["slot"] == 0
    assert found["pubkey"] == str(account)
    assert base64.b64decode(found["account"]["data"][0]) == (5).to_bytes(8, "little")


async def test_a_closed_account_is_gone_everywhere(rpc: Client) -> None:
    # Given an empty token account
    wallet, account = await rpc.usdc_wallet(1)
    _, other = await rpc.usdc_wallet(0)
    await rpc.send(rpc.signed(wallet, pay_usdc(rpc.localnet.usdc_mint, account, other, wallet.pubkey(), 1)))
    # When it is closed
    owner = wallet.pubkey()
    close = CloseAccountParams(program_id=TOKEN_PROGRAM, account=account, dest=owner, owner=owner)
    await rpc.send(rpc.signed(wallet, close_account(close)))
    # Then no method finds it
    assert (await rpc("getAccountInfo", str(account), CONFIRMED))["value"] is None
    wanted = {"mint": str(rpc.localnet.usdc_mint)}
    assert (await rpc("getTokenAccountsByOwner", str(wallet.pubkey()), wanted, CONFIRMED))["value"] == []
