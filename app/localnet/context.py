"""What the RPC methods share: the chain, contexts of answers, and the fields of their configuration objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solders.pubkey import Pubkey

from app.localnet import params
from app.localnet.chain import Chain
from app.localnet.errors import min_context_slot_not_reached
from app.localnet.params import Commitment, Reader

API_VERSION = "4.0.0"
"""The Agave release whose RPC answers are followed."""

COMMITMENT_FIELDS: dict[str, Reader] = {"commitment": params.commitment, "minContextSlot": params.u64}

context_config = params.config("RpcContextConfig", COMMITMENT_FIELDS)

data_slice = params.config(
    "UiDataSliceConfig", {"offset": params.usize, "length": params.usize}, frozenset({"offset", "length"})
)
account_encoding = params.choice("binary", "base58", "base64", "jsonParsed", "base64+zstd")
ACCOUNT_FIELDS: dict[str, Reader] = {**COMMITMENT_FIELDS, "encoding": account_encoding, "dataSlice": data_slice}


@dataclass(frozen=True, slots=True)
class Node:
    """What a method works on."""

    chain: Chain
    identity: Pubkey
    airdrop: Callable[[Pubkey, int], str]

    def slot_for(self, config: dict[str, Any]) -> int:
        """Return the slot an answer is taken from.

        Raises RpcError: it lies before the `minContextSlot` of the request.
        """
        slot = self.chain.slot(commitment_of(config))
        if slot < config.get("minContextSlot", 0):
            raise min_context_slot_not_reached(slot)
        return slot

    def with_context(self, config: dict[str, Any], value: Any) -> dict[str, Any]:
        """Return `value` together with the slot it is taken from."""
        return {"context": {"apiVersion": API_VERSION, "slot": self.slot_for(config)}, "value": value}


def commitment_of(config: dict[str, Any]) -> Commitment:
    """Return the commitment asked for; `finalized` when none is given."""
    level: Commitment = config.get("commitment", Commitment.FINALIZED)
    return level


@dataclass(frozen=True, slots=True)
class Method:
    """A method and how its parameters are read; the last of them are optional beyond `required`."""

    call: Callable[..., Any]
    readers: tuple[Reader, ...] = ()
    required: int = 0
