"""The embedded chain rejects version 1 as a validator does before its activation; the tests' proxy shows it."""

import base64
import json
from contextlib import aclosing
from typing import Any

import pytest
from websockets.asyncio.client import connect

from app.chain.errors import RpcError
from app.chain.rpc import Rpc
from app.chain.transport import HttpTransport
from idl.transactions import OPTIONS, parse
from tests.support.fault_proxy import fault_proxy
from tests.support.faults import Faults
from tests.support.localnet import CONFIRMED, Client, ManualClock, pay
from tests.support.processes import free_ports
from tests.support.runtimes import Runtime
from tests.support.version1 import UNSUPPORTED, Version1, as_version_1

_OF_AGAVE_4_0 = (
    "failed to deserialize solana_transaction::versioned::VersionedTransaction: io error: failed to fill whole buffer"
)


@pytest.mark.parametrize("method", ["sendTransaction", "simulateTransaction"])
async def test_version_1_is_rejected_as_before_its_activation(rpc: Client, method: str) -> None:
    sender = await rpc.wallet()
    for transaction in (rpc.signed(sender, pay(sender, sender.pubkey(), 1)), rpc.legacy(sender)):
        text = base64.b64encode(as_version_1(bytes(transaction))).decode()
        for options in ({}, {"skipPreflight": True} if method == "sendTransaction" else {"sigVerify": True}):
            error = await rpc.failure(method, text, {"encoding": "base64", **options})
            assert (error.code, error.message) == (-32602, _OF_AGAVE_4_0)


async def test_fee_of_a_version_1_message_is_unknown_as_before_its_activation(rpc: Client) -> None:
    message = parse(as_version_1(bytes(rpc.legacy(await rpc.wallet())))).message
    error = await rpc.failure("getFeeForMessage", base64.b64encode(message).decode())
    assert (error.code, error.message) == (
        -32602,
        (
            "failed to deserialize solana_message::non_bpf_modules::versions::VersionedMessage: "
            "invalid value: integer `1`, expected a valid transaction message version"
        ),
    )


async def test_proxy_shows_version_1_consistently(rpc: Client, clock: ManualClock, newer_solders: Runtime) -> None:
    sender, version_1 = await rpc.wallet(), Version1(newer_solders)
    address = str(sender.pubkey())
    raw = version_1.add(bytes(rpc.legacy(sender, pay(sender, sender.pubkey(), 1))), [sender])
    signature = str(parse(raw).signatures[0])
    (node, _), (proxy, _) = free_ports(), free_ports()
    async with (
        rpc.localnet.serving("127.0.0.1", node),
        fault_proxy(Faults(1), proxy, node, version_1),
        aclosing(HttpTransport(f"http://127.0.0.1:{proxy}")) as transport,
        connect(f"ws://127.0.0.1:{proxy + 1}", proxy=None) as ws,
    ):
        http = Rpc(transport)
        await ws.send(json.dumps(_call("logsSubscribe", {"mentions": [address]}, CONFIRMED)))
        await ws.send(json.dumps(_call("signatureSubscribe", signature, CONFIRMED)))
        assert all(["result" in json.loads(await ws.recv()) for _ in range(2)])

        assert await http.call("sendTransaction", [base64.b64encode(raw).decode(), {"encoding": "base64"}]) == signature

        told = [json.loads(await ws.recv()) for _ in range(2)]
        assert {one["method"] for one in told} == {"logsNotification", "signatureNotification"}
        [logs] = [one["params"]["result"]["value"] for one in told if one["method"] == "logsNotification"]
        assert (logs["signature"], logs["err"]) == (signature, None)
        [status] = (await http.call("getSignatureStatuses", [[signature]]))["value"]
        assert status["err"] is None
        [newest, *_] = await http.call("getSignaturesForAddress", [address, CONFIRMED])
        assert newest["signature"] == signature
        assert await http.call("getSignaturesForAddress", [address, {**CONFIRMED, "until": signature}]) == []
        shown = await http.call("getTransaction", [signature, OPTIONS])
        assert (shown["version"], shown["transaction"]) == (1, [base64.b64encode(raw).decode(), "base64"])
        full = {"encoding": "base64", "maxSupportedTransactionVersion": 1, **CONFIRMED}
        clock.advance_slots(2)
        block = await http.call("getBlock", [status["slot"], full])
        assert shown["transaction"] in [one["transaction"] for one in block["transactions"]]
        signatures = await http.call("getBlock", [status["slot"], {"transactionDetails": "signatures", **CONFIRMED}])
        assert signature in signatures["signatures"]
        for method, about in (("getTransaction", signature), ("getBlock", status["slot"])):
            with pytest.raises(RpcError) as refused:
                await http.call(method, [about, {**full, "maxSupportedTransactionVersion": 0}])
            assert refused.value.code == UNSUPPORTED["code"]


def _call(method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
