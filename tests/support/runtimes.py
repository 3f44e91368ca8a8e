"""VMs of two releases of solders, each in a separate process and Python environment.

The tests' own release has the old SPL Token program and leaves the second register zero. The newer release has p-token
and passes the address of the instruction data. Only the newer one supports transactions of version 1.
"""

import base64
import json
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.sysvar import INSTRUCTIONS

from app.chain.addresses import SYSTEM_PROGRAM
from tests.support.environments import environment
from tests.support.vm import Vm, custom_error_name

OLDER, NEWER = version("solders"), "0.29.0"
"""Releases of solders."""


class Runtime:
    """A VM of one solders release."""

    def __init__(self, release: str) -> None:
        worker = Path(__file__).with_name("vm_worker.py")
        command = [environment(f"solders-{release}", f"solders=={release}"), worker]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def do(self, what: str, **values: Any) -> dict[str, Any]:
        """Send a command to the worker and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **values}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def account(self, address: Pubkey, owner: Pubkey, data: bytes, lamports: int = 10**9) -> None:
        """Set an account in the VM."""
        encoded = base64.b64encode(data).decode()
        self.do("account", address=str(address), owner=str(owner), lamports=lamports, data=encoded)

    def units(self, payer: Keypair, *instructions: Instruction, signers: tuple[Keypair, ...] = ()) -> int:
        """Send a transaction and return the compute units used by its instructions."""
        wire = [
            {
                "program": str(one.program_id),
                "data": base64.b64encode(bytes(one.data)).decode(),
                "accounts": [[str(meta.pubkey), meta.is_signer, meta.is_writable] for meta in one.accounts],
            }
            for one in instructions
        ]
        answer = self.do("send", payer=str(payer), signers=[str(key) for key in signers], instructions=wire)
        if "units" not in answer:
            raise RuntimeError(f"{answer['error']}: {answer['logs']}")
        units: int = answer["units"]
        return units

    def error(self, vm: Vm, *instructions: Instruction) -> str | None:
        """Run a transaction on the accounts of another VM, without effects, and return the name of its error."""
        message = vm.transaction(*instructions).message
        self.do("clock", time=vm.now)
        for address in message.account_keys:
            account = vm.account(address)
            if account is None:
                self.account(address, SYSTEM_PROGRAM, b"", 0)
            elif not account.executable and address != INSTRUCTIONS:
                self.account(address, account.owner, account.data, account.lamports)
        answer = self.do("simulate", message=base64.b64encode(bytes(message)).decode())
        if "code" in answer:
            return custom_error_name(answer["code"], answer["logs"])
        error: str | None = answer["error"]
        return error

    def version_1(self, transaction: bytes, signers: Iterable[Keypair]) -> bytes:
        """Return a transaction in version 1 (SIMD-0385), signed by these keys. Only the newer release supports this."""
        keys = [str(one) for one in signers]
        answer = self.do("version_1", transaction=base64.b64encode(transaction).decode(), signers=keys)
        return base64.b64decode(answer["transaction"])

    def parse(self, transactions: Iterable[bytes]) -> list[dict[str, Any] | None]:
        """Parse transactions. Gives None for each one that the release refuses."""
        encoded = [base64.b64encode(one).decode() for one in transactions]
        parsed: list[dict[str, Any] | None] = self.do("parse", transactions=encoded)["parsed"]
        return parsed

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
