"""Runs a solana-test-validator on free ports, with a temporary ledger and accounts that exist at genesis.

The environment variable SOLANA_TEST_VALIDATOR names the executable; otherwise it is looked for on PATH.
"""

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.support.vm import LAMPORTS, PROGRAM, PROGRAM_ID

VARIABLE = "SOLANA_TEST_VALIDATOR"
TREASURY = 10**9 * LAMPORTS
TICKS_PER_SLOT = 16
"""A quarter of a cluster's: with slots of 100 ms, a transaction is confirmed in 0.2 s instead of 0.5 s."""
_PORTS = 32
"""In this order: RPC, WebSocket, faucet, gossip, and the rest for what the validator opens itself."""
_START_TIMEOUT = 60.0
# The validator ends when the pipe to its parent closes, which also happens when the tests are killed.
_UNTIL_THE_PIPE_ENDS = """
exec 3<&0
"$@" 3<&- &
validator=$!
{ cat <&3 >/dev/null; kill -9 $validator; } &
wait $validator
"""


class RpcError(Exception):
    """The node answered a call with an error."""


@dataclass(frozen=True)
class Node:
    """A running validator. `treasury` is the key of an account with 10^9 SOL."""

    url: str
    ws_url: str
    treasury: Keypair
    _client: httpx.Client
    _ids: Iterator[int]

    def call(self, method: str, *params: Any) -> Any:
        """Return the result of a JSON-RPC method. Raises `RpcError`."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = self._client.post(self.url, json=body).json()
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]


def executable() -> str | None:
    """Return the validator to run, or None if there is none."""
    return os.environ.get(VARIABLE) or shutil.which("solana-test-validator")


@contextlib.contextmanager
def running(command: str, folder: Path, accounts: Mapping[Pubkey, Account]) -> Iterator[Node]:
    """Run a validator with the program and `accounts`. It writes into `folder`; the ledger is removed at the end.

    Raises RuntimeError with the end of its output if it does not answer in time.
    """
    treasury = Keypair()
    money = Account(TREASURY, b"", Pubkey.default())
    given = folder / "accounts"
    given.mkdir()
    for address, account in {**accounts, treasury.pubkey(): money}.items():
        (given / f"{address}.json").write_text(_dump(address, account))
    port, ledger, output = _free_ports(), folder / "ledger", folder / "output.txt"
    arguments = [command, "--quiet", "--ledger", str(ledger), "--account-dir", str(given)]
    arguments += ["--bpf-program", str(PROGRAM_ID), str(PROGRAM), "--ticks-per-slot", str(TICKS_PER_SLOT)]
    arguments += ["--rpc-port", str(port), "--faucet-port", str(port + 2), "--gossip-port", str(port + 3)]
    arguments += ["--dynamic-port-range", f"{port + 4}-{port + _PORTS}"]
    with (
        output.open("wb") as log,
        subprocess.Popen(
            ["sh", "-c", _UNTIL_THE_PIPE_ENDS, "sh", *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log
        ) as process,
        httpx.Client(timeout=30) as client,
    ):
        try:
            node = Node(f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port + 1}", treasury, client, count(1))
            if not _answers(node, process):
                raise RuntimeError(f"{command} does not run:\n{output.read_text()[-2000:]}")
            yield node
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            shutil.rmtree(ledger, ignore_errors=True)


def _answers(node: Node, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError, RpcError):
            if node.call("getHealth") == "ok" and node.call("getBlockHeight", {"commitment": "confirmed"}):
                return True
        time.sleep(0.1)
    return False


def _dump(address: Pubkey, account: Account) -> str:
    """Return an account in the format of `solana account --output json`."""
    data = [base64.b64encode(account.data).decode(), "base64"]
    fields = {"lamports": account.lamports, "data": data, "owner": str(account.owner), "executable": False}
    return json.dumps({"pubkey": str(address), "account": {**fields, "rentEpoch": 2**64 - 1}})


def _free_ports() -> int:
    """Return the first of a range of ports that are all free for TCP and UDP."""
    while True:
        first = random.randrange(20_000, 32_000)  # below the ephemeral ports
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + _PORTS + 1):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("127.0.0.1", port))
            return first
