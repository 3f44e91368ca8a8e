"""The node over real sockets, as solana-py uses it: HTTP and WebSocket subscriptions."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Finalized, Processed
from solana.rpc.types import MemcmpOpts, TxOpts
from solders.keypair import Keypair
from solders.message import Message
from solders.rpc.config import RpcTransactionLogsFilterMentions
from solders.signature import Signature
from solders.token.state import TokenAccount
from solders.transaction import Transaction
from solders.transaction_status import TransactionConfirmationStatus
from websockets.asyncio.client import connect as connect_plainly

from app.localnet import Localnet, subscriptions
from app.localnet.tokens import TOKEN_PROGRAM
from tests.support.localnet import SOL, Client, ManualClock, client, distinct, pay, pay_usdc

with warnings.catch_warnings():
    # solana-py 0.36 imports a deprecated part of websockets.
    warnings.simplefilter("ignore", DeprecationWarning)
    from solana.rpc.websocket_api import SolanaWsClientProtocol, connect

SECONDS = 5


@pytest.fixture
async def ports(rpc: Client) -> AsyncIterator[tuple[int, int]]:
    async with rpc.localnet.serving("127.0.0.1", 0) as ports:
        yield ports


@pytest.fixture
async def ws(ports: tuple[int, int]) -> AsyncIterator[SolanaWsClientProtocol]:
    async with connect(f"ws://127.0.0.1:{ports[1]}") as connection:
        yield connection


async def receive(ws: SolanaWsClientProtocol) -> Any:
    """Return the result of the next message, which must have one part."""
    async with asyncio.timeout(SECONDS):
        (message,) = await ws.recv()
    return message.result


async def nothing_comes(ws: SolanaWsClientProtocol) -> bool:
    """Tell whether no message comes before the answer to a request sent now."""
    await ws.slot_subscribe()
    return isinstance(await receive(ws), int)


async def test_the_websocket_port_follows_the_http_port(ports: tuple[int, int]) -> None:
    assert ports[1] == ports[0] + 1


async def test_a_taken_port_is_an_error(rpc: Client, ports: tuple[int, int]) -> None:
    with pytest.raises(OSError, match="in use"):
        async with rpc.localnet.serving("127.0.0.1", ports[0]):
            pass


async def test_solana_py_pays_and_waits_for_the_confirmation(ports: tuple[int, int]) -> None:
    async with AsyncClient(f"http://127.0.0.1:{ports[0]}", Confirmed) as solana:
        assert await solana.is_connected()
        sender, receiver = Keypair(), Keypair().pubkey()
        airdrop = (await solana.request_airdrop(sender.pubkey(), SOL)).value
        await solana.confirm_transaction(airdrop, Confirmed, 0.01)
        latest = (await solana.get_latest_blockhash()).value
        message = Message.new_with_blockhash([pay(sender, receiver, SOL // 2)], sender.pubkey(), latest.blockhash)
        sent = await solana.send_transaction(
            Transaction([sender], message, latest.blockhash), TxOpts(preflight_commitment=Confirmed)
        )
        answer = await solana.confirm_transaction(sent.value, Confirmed, 0.01, latest.last_valid_block_height)
        assert answer.value[0] is not None
        assert answer.value[0].confirmation_status == TransactionConfirmationStatus.Confirmed
        assert (await solana.get_balance(receiver)).value == SOL // 2
        shown = (await solana.get_transaction(sent.value, "json", Confirmed, 0)).value
        assert shown is not None
        assert shown.transaction.meta is not None
        assert shown.transaction.meta.fee == 5000
        history = (await solana.get_signatures_for_address(receiver)).value
        assert [line.signature for line in history] == [sent.value]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_signature_is_notified_once_when_confirmed(
    rpc: Client, ws: SolanaWsClientProtocol, fails: bool
) -> None:
    sender = await rpc.wallet()
    lamports = 2 * SOL if fails else SOL // 2
    transaction = rpc.signed(sender, pay(sender, Keypair().pubkey(), lamports))
    await ws.signature_subscribe(transaction.signatures[0], Confirmed)
    await receive(ws)
    await rpc.send(transaction, skipPreflight=True)
    notified = await receive(ws)
    assert (notified.value.err is not None) is fails
    assert notified.context.slot == 0
    assert await nothing_comes(ws)


async def test_a_signature_that_is_confirmed_already_is_notified_at_once(
    rpc: Client, ws: SolanaWsClientProtocol
) -> None:
    sender = await rpc.wallet()
    signature = await rpc.send(rpc.signed(sender, pay(sender, sender.pubkey(), 1)))
    await ws.signature_subscribe(Signature.from_string(signature), Confirmed)
    assert isinstance(await receive(ws), int)
    assert (await receive(ws)).value.err is None


async def test_a_signature_is_notified_as_finalized_32_slots_later(
    rpc: Client, ws: SolanaWsClientProtocol, clock: ManualClock
) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    await ws.signature_subscribe(transaction.signatures[0], Finalized)
    await ws.logs_subscribe(commitment=Finalized)
    await receive(ws)
    await receive(ws)
    await rpc.send(transaction)
    clock.advance_slots(31)
    assert await nothing_comes(ws)
    clock.advance_slots(1)
    notified = [await receive(ws) for _ in range(3)]
    assert {type(one).__name__ for one in notified} == {
        "SignatureNotificationResult",
        "LogsNotificationResult",
        "SlotInfo",
    }


async def test_logs_of_every_transaction_or_of_those_that_mention_an_address(
    rpc: Client, ws: SolanaWsClientProtocol
) -> None:
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    await ws.logs_subscribe(RpcTransactionLogsFilterMentions(receiver), Confirmed)
    first = await receive(ws)
    await rpc.send(rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1)))
    signature = await rpc.send(rpc.signed(sender, pay(sender, receiver, SOL // 2)))
    notified = await receive(ws)
    assert str(notified.value.signature) == signature
    assert notified.value.logs[-1] == "Program 11111111111111111111111111111111 success"
    await ws.logs_unsubscribe(first)
    assert await receive(ws) is True
    await ws.logs_subscribe(commitment=Processed)
    await receive(ws)
    signature = await rpc.send(rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1)))
    assert str((await receive(ws)).value.signature) == signature


async def test_changes_of_an_account(rpc: Client, ws: SolanaWsClientProtocol) -> None:
    sender, receiver = await rpc.wallet(), Keypair().pubkey()
    await ws.account_subscribe(receiver, Confirmed, "base64")
    await receive(ws)
    await rpc.send(rpc.signed(sender, distinct(), pay(sender, receiver, SOL // 2)))
    assert (await receive(ws)).value.lamports == SOL // 2
    await rpc.send(rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1)))
    assert await nothing_comes(ws)


async def test_accounts_of_a_program_that_pass_the_filters(rpc: Client, ws: SolanaWsClientProtocol) -> None:
    wallet, source = await rpc.usdc_wallet(1_000)
    _, target = await rpc.usdc_wallet(0)
    mint = rpc.localnet.usdc_mint
    await ws.program_subscribe(
        TOKEN_PROGRAM, Confirmed, "base64", filters=[165, MemcmpOpts(offset=32, bytes=str(wallet.pubkey()))]
    )
    assert isinstance(await receive(ws), int)

    await rpc.send(rpc.signed(wallet, pay_usdc(mint, source, target, wallet.pubkey(), 400)))

    notified = await receive(ws)
    assert notified.value.pubkey == source
    assert TokenAccount.from_bytes(notified.value.account.data).amount == 600
    assert await nothing_comes(ws)


async def test_roots_are_32_slots_behind(rpc: Client, ws: SolanaWsClientProtocol, clock: ManualClock) -> None:
    clock.advance_slots(40)
    await ws.root_subscribe()
    assert isinstance(await receive(ws), int)

    clock.advance_slots(1)

    assert await receive(ws) == await rpc("getSlot", {"commitment": "finalized"})


async def test_port_of_the_calls_takes_subscriptions_too(rpc: Client, ports: tuple[int, int]) -> None:
    sender = await rpc.wallet()
    transaction = rpc.signed(sender, pay(sender, sender.pubkey(), 1))
    async with connect(f"ws://127.0.0.1:{ports[0]}") as ws:
        await ws.signature_subscribe(transaction.signatures[0], Confirmed)
        assert isinstance(await receive(ws), int)

        await rpc.send(transaction)

        assert (await receive(ws)).value.err is None


async def test_slots(ws: SolanaWsClientProtocol, clock: ManualClock) -> None:
    await ws.slot_subscribe()
    number = await receive(ws)
    clock.advance_slots(100)
    slot = await receive(ws)
    assert (slot.slot, slot.parent, slot.root) == (100, 99, 68)
    await ws.slot_unsubscribe(number)
    assert await receive(ws) is True


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("signatureSubscribe", ["x"], -32602),
        ("signatureSubscribe", [], -32602),
        ("logsSubscribe", ["some"], -32602),
        ("logsSubscribe", [{"mentions": []}], -32602),
        ("logsSubscribe", [{"mentions": ["1" * 32, "1" * 32]}], -32602),
        ("accountSubscribe", ["x"], -32602),
        ("accountSubscribe", ["1" * 32, {"encoding": "hex"}], -32602),
        ("slotSubscribe", [1], -32602),
        ("slotUnsubscribe", [99], -32602),
        ("logsUnsubscribe", ["x"], -32602),
        ("blockSubscribe", ["all"], -32601),
        ("getSlot", [], -32601),
    ],
)
async def test_wrong_subscriptions(ports: tuple[int, int], method: str, params: list[Any], code: int) -> None:
    async with connect_plainly(f"ws://127.0.0.1:{ports[1]}") as ws:
        await ws.send(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
        answer = json.loads(await ws.recv())
        assert (answer["error"]["code"], answer["id"]) == (code, 7)
        # The connection stays usable.
        await ws.send("{")
        assert json.loads(await ws.recv())["error"]["code"] == -32700


async def test_a_batch_of_subscriptions_is_answered_as_one(ports: tuple[int, int]) -> None:
    requests = [{"jsonrpc": "2.0", "id": index, "method": "slotSubscribe"} for index in (1, 2)]
    async with connect_plainly(f"ws://127.0.0.1:{ports[1]}") as ws:
        await ws.send(json.dumps(requests))
        assert [one["id"] for one in json.loads(await ws.recv())] == [1, 2]


async def test_a_disconnected_client_leaves_no_subscriptions(rpc: Client, ports: tuple[int, int]) -> None:
    async with connect(f"ws://127.0.0.1:{ports[1]}") as ws:
        await ws.logs_subscribe()
        await ws.signature_subscribe(Signature.default())
        await receive(ws)
        await receive(ws)
    kept = rpc.localnet._subscriptions
    async with asyncio.timeout(SECONDS):
        while any(kept._all.values()) or kept._by_signature:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_is_cut_off(rpc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_MAX_QUEUED", 5)
    sender = await rpc.wallet()
    async with (
        rpc.localnet.serving("127.0.0.1", 0) as (_, port),
        connect_plainly(f"ws://127.0.0.1:{port}") as ws,
    ):
        await ws.send('{"jsonrpc":"2.0","id":1,"method":"logsSubscribe","params":["all",{"commitment":"processed"}]}')
        await ws.recv()
        for _ in range(20):
            rpc.localnet.chain.send(rpc.signed(sender, distinct(), pay(sender, sender.pubkey(), 1)), preflight=True)
        async with asyncio.timeout(SECONDS):
            await ws.wait_closed()
        assert ws.close_code == 1013


async def test_http_connections_are_kept_open(ports: tuple[int, int]) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}") as http:
        for _ in range(3):
            answer = await http.post("/", json={"jsonrpc": "2.0", "id": 1, "method": "getHealth"})
            assert answer.json()["result"] == "ok"
        assert (await http.get("/health")).text == "ok"


async def test_two_chains_serve_side_by_side(clock: ManualClock) -> None:
    async with Localnet.open(None, {}, clock) as one, Localnet.open(None, {}, clock) as two:
        async with one.serving("127.0.0.1", 0) as first, two.serving("127.0.0.1", 0) as second:
            assert first != second
        assert await client(one)("getGenesisHash") != await client(two)("getGenesisHash")
