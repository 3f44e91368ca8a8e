"""Transactions of version 1 (SIMD-0385), unknown to the tests' own release of solders and to the embedded chain."""

import base64
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from solders.keypair import Keypair

from idl.transactions import parse
from tests.support.runtimes import Runtime

Through = Callable[[bytes], Awaitable[bytes]]

UNSUPPORTED = {
    "code": -32015,
    "message": "Transaction version (1) is not supported by the requesting client. Please try the request again with "
    'the following configuration parameter: "maxSupportedTransactionVersion": 1',
}
"""A node's answer to a client that does not ask for version 1."""
UNIT_LIMIT = 1_400_000
_PREFIX = b"\x81"
_LIMIT_IS_SET = 1 << 2
"""Bit of the configuration mask for the limit of compute units."""


def as_version_1(transaction: bytes) -> bytes:
    """Convert a legacy or version-0 transaction to version 1, keeping the signatures, which become invalid.

    Raises `ValueError` for a transaction with addresses from lookup tables, which version 1 does not have.
    """
    old = parse(transaction)
    if old.from_tables:
        raise ValueError("it has addresses from lookup tables")
    header = old.header
    steps = old.instructions
    return b"".join(
        (
            _PREFIX,
            bytes((header.num_required_signatures, header.num_readonly_signed_accounts)),
            bytes((header.num_readonly_unsigned_accounts,)),
            _LIMIT_IS_SET.to_bytes(4, "little"),
            bytes(old.blockhash),
            bytes((len(steps), len(old.keys))),
            *map(bytes, old.keys),
            UNIT_LIMIT.to_bytes(4, "little"),
            *(bytes((one.program_id_index, len(one.accounts))) + len(one.data).to_bytes(2, "little") for one in steps),
            *(bytes(one.accounts) + bytes(one.data) for one in steps),
            *map(bytes, old.signatures),
        )
    )


class Version1:
    """Accepts and shows transactions of version 1, in front of a chain that does not know this version.

    Each transaction of version 1 stands for one that the chain has, with the same instructions and signing keys.
    """

    def __init__(self, solders: Runtime) -> None:
        """Use a release of solders that supports version 1."""
        self._solders = solders
        self._shown: dict[str, str] = {}
        """Maps signatures and bytes of the chain's transactions, as text, to their counterparts in version 1."""

    def add(self, transaction: bytes, signers: Iterable[Keypair]) -> bytes:
        """Convert a transaction of the chain to version 1. From now on, the version-1 form is shown in its place."""
        new = self._solders.version_1(transaction, signers)
        self._shown[str(parse(transaction).signatures[0])] = str(parse(new).signatures[0])
        self._shown[base64.b64encode(transaction).decode()] = base64.b64encode(new).decode()
        return new

    def show(self, text: str) -> str:
        """Return the chain's response or notification with each transaction replaced by its version-1 counterpart."""
        for old, new in self._shown.items():
            text = text.replace(old, new)
        return text

    def hide(self, text: str) -> str:
        """Return a request with the signatures and bytes of version 1 replaced by those that the chain knows."""
        for old, new in self._shown.items():
            text = text.replace(new, old)
        return text

    async def answer(self, body: bytes, through: Through) -> bytes:
        """Pass a request to the chain and return its answer."""
        answer = json.loads(self.show((await through(self.hide(body.decode()).encode())).decode()))
        calls, answers = (one if isinstance(one, list) else [one] for one in (json.loads(body), answer))
        by_id = {one["id"]: one for one in calls}
        told = [_told(by_id[one["id"]], one) for one in answers]
        return json.dumps(told if isinstance(answer, list) else told[0]).encode()


def _told(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Add the version to an answer, or refuse the transaction to a client that does not accept the version."""
    if call["method"] not in {"getTransaction", "getBlock"} or not answer.get("result"):
        return answer
    result, options = answer["result"], dict(*call["params"][1:2])
    shown = [result] if call["method"] == "getTransaction" else result.get("transactions", ())
    for one in shown:
        if isinstance(one["transaction"], list) and base64.b64decode(one["transaction"][0]).startswith(_PREFIX):
            if (options.get("maxSupportedTransactionVersion") or 0) < 1:
                return {"jsonrpc": "2.0", "id": call["id"], "error": UNSUPPORTED}
            one["version"] = 1
    return answer
