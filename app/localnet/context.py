"""Shared parts of the RPC methods: the chain, the context of responses, and common configuration fields."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solders.pubkey import Pubkey

from app.localnet import params
from app.localnet.chain import Chain
from app.localnet.errors import MIN_CONTEXT_SLOT_NOT_REACHED, MethodError
from app.localnet.params import Commitment, Reader

API_VERSION = "4.0.0"
"""The Agave release that this node imitates in its RPC responses."""

TRANSACTION_ENCODINGS = ("binary", "base64", "base58", "json", "jsonParsed")
transaction_encoding = params.choice(*TRANSACTION_ENCODINGS)
account_encoding = params.choice("binary", "base58", "base64", "jsonParsed", "base64+zstd")
data_slice = params.config(
    "UiDataSliceConfig", {"offset": params.usize, "length": params.usize}, frozenset({"offset", "length"})
)

COMMITMENT_FIELDS: dict[str, Reader] = {"commitment": params.commitment, "minContextSlot": params.u64}
ACCOUNT_FIELDS: dict[str, Reader] = {**COMMITMENT_FIELDS, "encoding": account_encoding, "dataSlice": data_slice}
context_config = params.config("RpcContextConfig", COMMITMENT_FIELDS)
account_config = params.config("RpcAccountInfoConfig", ACCOUNT_FIELDS)


@dataclass(frozen=True, slots=True)
class Node:
    """The chain that a method reads or changes, the node's identity, and its faucet."""

    chain: Chain
    identity: Pubkey
    airdrop: Callable[[Pubkey, int], str]

    def slot_for(self, config: dict[str, Any]) -> int:
        """Return the slot that the response to a request describes.

        Raises MethodError if this slot is before the request's `minContextSlot`.
        """
        slot = self.chain.slot(commitment_of(config))
        if slot < config.get("minContextSlot", 0):
            message = "Minimum context slot has not been reached"
            raise MethodError(MIN_CONTEXT_SLOT_NOT_REACHED, message, {"contextSlot": slot})
        return slot

    def with_context(self, config: dict[str, Any], value: Any) -> dict[str, Any]:
        """Return `value` together with the slot that it describes."""
        return {"context": {"apiVersion": API_VERSION, "slot": self.slot_for(config)}, "value": value}


def commitment_of(config: dict[str, Any]) -> Commitment:
    """Return the requested commitment, `finalized` by default."""
    level: Commitment = config.get("commitment", Commitment.FINALIZED)
    return level


@dataclass(frozen=True, slots=True)
class Method:
    """A method and the readers of its parameters. The first `required` parameters are mandatory.

    With `in_context`, the response also names the slot that it describes. The last parameter must then be the
    configuration, because its `minContextSlot` is checked before the call.
    """

    call: Callable[..., Any]
    readers: tuple[Reader, ...] = ()
    required: int = 0
    in_context: bool = False
