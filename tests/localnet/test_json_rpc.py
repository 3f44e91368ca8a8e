"""The protocol around the methods: requests, batches, errors, HTTP."""

from typing import Any

import pytest

from app.localnet.dispatch import METHODS
from tests.support.localnet import Client

ADDRESS = "11111111111111111111111111111111"
SIGNATURE = "1" * 64
TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
JSON = {"content-type": "application/json"}


async def post(rpc: Client, body: bytes) -> Any:
    answer = await rpc.http.post("/", content=body, headers=JSON)
    assert answer.status_code == 200
    return answer.json() if answer.content else None


@pytest.mark.parametrize(
    ("body", "code", "request_id"),
    [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":[NaN]}', -32700, None),
        (b"[" * 20_000, -32700, None),
        (b"1", -32700, None),
        (b"{}", -32600, None),
        (b'{"jsonrpc":"2.0","id":1e999,"method":"getHealth"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":[1e999],"method":"getHealth"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"getHealth"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"getHealth"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"getSlot"}', -32600, 1),
        (b'{"id":1,"method":"getSlot"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":5}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"getSlot","extra":1}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":"a","method":"getSlot","params":{}}', -32602, "a"),
        (b'{"jsonrpc":"2.0","id":"a","method":"getNothing"}', -32601, "a"),
        (b'{"jsonrpc":"2.0","id":"a","method":"getBlocks","params":[1,2]}', -32601, "a"),
    ],
)
async def test_a_malformed_request_gets_the_right_error_code(
    rpc: Client, body: bytes, code: int, request_id: Any
) -> None:
    answer = await post(rpc, body)
    assert answer["error"]["code"] == code
    assert answer["id"] == request_id


async def test_null_params_mean_no_parameters(rpc: Client) -> None:
    assert (await post(rpc, b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":null}'))["result"] == 0


async def test_a_batch_is_answered_in_order(rpc: Client) -> None:
    body = b'[{"jsonrpc":"2.0","id":1,"method":"getHealth"},{"jsonrpc":"2.0","id":2,"method":"x"},{"id":3}]'
    answers = await post(rpc, body)
    assert [one["id"] for one in answers] == [1, 2, 3]
    assert answers[0]["result"] == "ok"
    assert [one["error"]["code"] for one in answers[1:]] == [-32601, -32600]


async def test_notifications_and_empty_batches_are_not_answered(rpc: Client) -> None:
    assert await post(rpc, b'{"jsonrpc":"2.0","method":"getHealth"}') is None
    assert await post(rpc, b"[]") is None


async def test_http_rules(rpc: Client) -> None:
    assert (await rpc.http.get("/health")).text == "ok"
    assert (await rpc.http.get("/")).status_code == 405
    assert (await rpc.http.post("/", content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    assert (await rpc.http.post("/", content=b" " * 51_201, headers=JSON)).status_code == 413


async def test_browsers_may_call_from_any_origin(rpc: Client) -> None:
    headers = {"origin": "https://wallet.example", "access-control-request-method": "POST"}
    answer = await rpc.http.options("/", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "*"


WRONG_PARAMETERS: list[tuple[str, list[Any], str]] = [
    ("getHealth", [1], "Invalid parameters: No parameters were expected"),
    ("getVersion", [None], "Invalid parameters: No parameters were expected"),
    ("getGenesisHash", [1], "Invalid parameters: No parameters were expected"),
    ("getIdentity", [1], "Invalid parameters: No parameters were expected"),
    ("getEpochSchedule", [1], "Invalid parameters: No parameters were expected"),
    ("getFirstAvailableBlock", [1], "Invalid parameters: No parameters were expected"),
    ("minimumLedgerSlot", [1], "Invalid parameters: No parameters were expected"),
    ("getSlot", [1], "Invalid params: invalid type: integer `1`, expected struct RpcContextConfig."),
    ("getSlot", [{}, {}], "Invalid parameters: Expected from 0 to 1 parameters."),
    ("getSlot", [{"minContextSlot": -1}], "Invalid params: invalid value: integer `-1`, expected u64."),
    ("getBlockHeight", ["x"], 'Invalid params: invalid type: string "x", expected struct RpcContextConfig.'),
    ("getTransactionCount", [[]], "Invalid params: invalid type: sequence, expected struct RpcContextConfig."),
    ("getEpochInfo", [True], "Invalid params: invalid type: boolean `true`, expected struct RpcContextConfig."),
    (
        "getLatestBlockhash",
        [1.5],
        "Invalid params: invalid type: floating point `1.5`, expected struct RpcContextConfig.",
    ),
    ("getBlock", [], "`params` should have at least 1 argument(s)"),
    ("getBlock", ["x"], 'Invalid params: invalid type: string "x", expected u64.'),
    ("getBlock", [1, 2], "Invalid params: invalid type: integer `2`, expected struct RpcBlockConfig."),
    ("getBlockTime", [], "Invalid params: invalid length 0, expected a tuple of size 1."),
    ("getBlockTime", ["x"], 'Invalid params: invalid type: string "x", expected u64.'),
    ("isBlockhashValid", [], "`params` should have at least 1 argument(s)"),
    ("isBlockhashValid", ["x"], "WrongSize"),
    ("isBlockhashValid", [5], "Invalid params: invalid type: integer `5`, expected a string."),
    ("getFeeForMessage", [], "`params` should have at least 1 argument(s)"),
    ("getMinimumBalanceForRentExemption", [-1], "Invalid params: invalid value: integer `-1`, expected usize."),
    ("getMinimumBalanceForRentExemption", ["x"], 'Invalid params: invalid type: string "x", expected usize.'),
    ("getRecentPrioritizationFees", [1], "Invalid params: invalid type: integer `1`, expected a sequence."),
    ("getRecentPrioritizationFees", [["x"]], "Invalid param: WrongSize"),
    ("getBalance", [], "`params` should have at least 1 argument(s)"),
    ("getBalance", ["0OIl"], "Invalid param: Invalid"),
    ("getBalance", ["l" * 44], "Invalid param: Invalid"),
    ("getBalance", ["l" * 45], "Invalid param: WrongSize"),
    ("getBalance", ["z" * 44], "Invalid param: WrongSize"),
    ("getBalance", [ADDRESS, {}, 5], "Invalid parameters: Expected from 1 to 2 parameters."),
    ("getAccountInfo", ["x"], "Invalid param: WrongSize"),
    ("getAccountInfo", ["1" * 40_000], "Invalid param: WrongSize"),
    (
        "getAccountInfo",
        [ADDRESS, {"encoding": "hex"}],
        (
            "Invalid params: unknown variant `hex`, expected one of `binary`, `base58`, `base64`, `jsonParsed`, "
            "`base64+zstd`."
        ),
    ),
    ("getAccountInfo", [ADDRESS, {"dataSlice": {"offset": 2}}], "Invalid params: missing field `length`."),
    (
        "getAccountInfo",
        [ADDRESS, {"dataSlice": {"offset": 2, "length": None}}],
        "Invalid params: missing field `length`.",
    ),
    ("getMultipleAccounts", [ADDRESS], f'Invalid params: invalid type: string "{ADDRESS}", expected a sequence.'),
    ("getMultipleAccounts", [[ADDRESS] * 101], "Too many inputs provided; max 100"),
    ("getProgramAccounts", ["x"], "Invalid param: WrongSize"),
    ("getProgramAccounts", [ADDRESS, {"filters": [{"dataSize": 1}] * 5}], "Too many filters provided; max 4"),
    (
        "getProgramAccounts",
        [ADDRESS, {"filters": [{"nope": 1}]}],
        "Invalid params: unknown variant `nope`, expected one of `dataSize`, `memcmp`, `tokenAccountState`.",
    ),
    (
        "getProgramAccounts",
        [ADDRESS, {"filters": [{"memcmp": {"offset": 0, "bytes": "x0"}}]}],
        "Invalid param: Base58DecodeError(InvalidCharacter { character: '0', index: 1 })",
    ),
    (
        "getProgramAccounts",
        [ADDRESS, {"filters": [{"memcmp": {"offset": 0, "bytes": "!!", "encoding": "base64"}}]}],
        "Invalid param: Base64DecodeError(InvalidByte(0, 33))",
    ),
    (
        "getProgramAccounts",
        [ADDRESS, {"filters": [{"memcmp": {"offset": 0, "bytes": "2" * 200}}]}],
        "Invalid param: DataTooLarge",
    ),
    ("getTokenAccountBalance", [ADDRESS], "Invalid param: not a Token account"),
    ("getTokenAccountBalance", [TOKEN_PROGRAM[:-1] + "B"], "Invalid param: could not find account"),
    ("getTokenSupply", [ADDRESS], "Invalid param: not a Token mint"),
    ("getTokenSupply", [], "`params` should have at least 1 argument(s)"),
    ("getTokenAccountsByOwner", [ADDRESS], "`params` should have at least 2 argument(s)"),
    ("getTokenAccountsByOwner", [ADDRESS, {}], "Invalid params: invalid value: map, expected map with a single key."),
    ("getTokenAccountsByOwner", [ADDRESS, {"mint": ADDRESS}], "Invalid param: Token mint could not be unpacked"),
    ("getTokenAccountsByOwner", [ADDRESS, {"programId": ADDRESS}], "Invalid param: unrecognized Token program id"),
    (
        "getTokenAccountsByOwner",
        [ADDRESS, {"x": "x"}],
        "Invalid params: unknown variant `x`, expected `mint` or `programId`.",
    ),
    ("requestAirdrop", [ADDRESS], "`params` should have at least 2 argument(s)"),
    ("requestAirdrop", [ADDRESS, -1], "Invalid params: invalid value: integer `-1`, expected u64."),
    ("requestAirdrop", [ADDRESS, 2**64], f"Invalid params: invalid value: integer `{2**64}`, expected u64."),
    ("sendTransaction", [], "`params` should have at least 1 argument(s)"),
    ("sendTransaction", ["!!", {"encoding": "base64"}], "invalid base64 encoding: InvalidByte(0, 33)"),
    (
        "sendTransaction",
        ["AA", {"encoding": "jsonParsed"}],
        "unsupported encoding: jsonParsed. Supported encodings: base58, base64",
    ),
    (
        "sendTransaction",
        ["A" * 3000, {"encoding": "base64"}],
        (
            "base64 encoded solana_transaction::versioned::VersionedTransaction too large: 3000 bytes "
            "(max: encoded/raw 1644/1232)"
        ),
    ),
    (
        "sendTransaction",
        ["AA==", {"preflightCommitment": "soon"}],
        "Invalid params: unknown variant `soon`, expected one of `processed`, `confirmed`, `finalized`.",
    ),
    ("simulateTransaction", ["x", {"encoding": "base64"}], "invalid base64 encoding: InvalidLength(1)"),
    ("getTransaction", ["x"], "Invalid param: WrongSize"),
    ("getTransaction", ["l" * 88], "Invalid param: Invalid"),
    ("getTransaction", ["l" * 89], "Invalid param: WrongSize"),
    (
        "getTransaction",
        [SIGNATURE, "hex"],
        "Invalid params: data did not match any variant of untagged enum RpcEncodingConfigWrapper.",
    ),
    (
        "getTransaction",
        [SIGNATURE, {"commitment": "processed"}],
        "Method does not support commitment below `confirmed`",
    ),
    ("getSignatureStatuses", [[SIGNATURE] * 257], "Too many inputs provided; max 256"),
    ("getSignatureStatuses", [["x"]], "Invalid param: WrongSize"),
    ("getSignaturesForAddress", [ADDRESS, {"limit": 0}], "Invalid limit; max 1000"),
    ("getSignaturesForAddress", [ADDRESS, {"limit": 1001}], "Invalid limit; max 1000"),
    (
        "getSignaturesForAddress",
        [ADDRESS, {"limit": -1}],
        "Invalid params: invalid value: integer `-1`, expected usize.",
    ),
    ("getSignaturesForAddress", [ADDRESS, {"before": "x"}], "Invalid param: WrongSize"),
]


@pytest.mark.parametrize(("method", "params", "message"), WRONG_PARAMETERS)
async def test_wrong_parameters_get_a_validators_answer(
    rpc: Client, method: str, params: list[Any], message: str
) -> None:
    error = await rpc.failure(method, *params)
    assert (error.code, error.message) == (-32602, message)


def test_every_method_is_tried_with_wrong_parameters() -> None:
    assert {method for method, _, _ in WRONG_PARAMETERS} == set(METHODS)
