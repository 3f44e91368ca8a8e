"""RPC methods about the chain itself: slots, blockhashes, fees, health."""

from typing import Any

from solders.hash import Hash
from solders.message import from_bytes_versioned
from solders.pubkey import Pubkey

from app.localnet import params, transactions
from app.localnet.context import API_VERSION, Method, Node, context_config
from app.localnet.errors import BLOCK_NOT_AVAILABLE, INVALID_REQUEST, MethodError, invalid_params, node_unhealthy
from app.localnet.timeline import MAX_BLOCKHASH_AGE, SLOTS_PER_EPOCH

_MAX_DATA_SIZE = 10 * 1024 * 1024
_MESSAGE_TYPE = "solana_message::non_bpf_modules::versions::VersionedMessage"

_EPOCH_SCHEDULE = {
    "firstNormalEpoch": 0,
    "firstNormalSlot": 0,
    "leaderScheduleSlotOffset": SLOTS_PER_EPOCH,
    "slotsPerEpoch": SLOTS_PER_EPOCH,
    "warmup": False,
}


def get_health(node: Node) -> str:
    """Return "ok" if the chain can write to its disk."""
    if not node.chain.healthy:
        raise node_unhealthy()
    return "ok"


def get_slot(node: Node, config: dict[str, Any]) -> int:
    """Return the newest slot at the commitment. Every slot has a block, so this is also the block height."""
    return node.slot_for(config)


def get_transaction_count(node: Node, config: dict[str, Any]) -> int:
    """Return the number of transactions executed since genesis."""
    node.slot_for(config)
    return node.chain.transaction_count


def get_block_time(node: Node, slot: int) -> int:
    """Return the Unix second in which a past slot or the current slot began."""
    if slot > node.chain.slot():
        raise MethodError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
    return node.chain.timeline.block_time(slot)


def get_epoch_info(node: Node, config: dict[str, Any]) -> dict[str, int]:
    """Return the epoch, the slot and the number of transactions."""
    slot = node.slot_for(config)
    return {
        "absoluteSlot": slot,
        "blockHeight": slot,
        "epoch": slot // SLOTS_PER_EPOCH,
        "slotIndex": slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": node.chain.transaction_count,
    }


def get_latest_blockhash(node: Node, config: dict[str, Any]) -> dict[str, Any]:
    """Return the blockhash of the newest slot at the commitment, and the last block height at which it is valid."""
    slot = node.slot_for(config)
    return {"blockhash": str(node.chain.timeline.blockhash(slot)), "lastValidBlockHeight": slot + MAX_BLOCKHASH_AGE}


def is_blockhash_valid(node: Node, blockhash: Hash, _config: dict[str, Any]) -> bool:
    """Return True if a transaction may still name this blockhash."""
    return node.chain.timeline.slot_of_blockhash(blockhash, node.chain.slot()) is not None


def get_fee_for_message(node: Node, text: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the fee of a message given in base64, or null if its blockhash has expired."""
    raw = params.wire_bytes(text, "base64", _MESSAGE_TYPE)
    try:
        message = from_bytes_versioned(raw)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {_MESSAGE_TYPE}: {error}") from None
    valid = is_blockhash_valid(node, message.recent_blockhash, config)
    return node.with_context(config, transactions.fee(message) if valid else None)


def get_minimum_balance_for_rent_exemption(node: Node, size: int, config: dict[str, Any]) -> int:
    """Return the lamports that make an account of `size` bytes rent-exempt."""
    node.slot_for(config)
    if size > _MAX_DATA_SIZE:
        raise MethodError(INVALID_REQUEST, "Invalid request")
    return node.chain.bank.rent_minimum(size)


def get_recent_prioritization_fees(node: Node, _addresses: list[Pubkey]) -> list[dict[str, int]]:
    """Return the lowest priority fee needed in each of the last 150 slots: zero, because there is always room."""
    newest = node.chain.slot()
    return [
        {"slot": slot, "prioritizationFee": 0} for slot in range(max(0, newest - MAX_BLOCKHASH_AGE + 1), newest + 1)
    ]


_FEE_ADDRESSES = params.optional(params.sequence(params.pubkey, 128), [])

METHODS = {
    "getHealth": Method(get_health),
    # Feature set 0 shows that this is not a validator.
    "getVersion": Method(lambda _node: {"feature-set": 0, "solana-core": API_VERSION}),
    "getGenesisHash": Method(lambda node: str(node.chain.timeline.genesis_hash)),
    "getIdentity": Method(lambda node: {"identity": str(node.identity)}),
    "getSlot": Method(get_slot, (context_config,)),
    "getBlockHeight": Method(get_slot, (context_config,)),
    "getTransactionCount": Method(get_transaction_count, (context_config,)),
    "getBlockTime": Method(get_block_time, (params.u64,), 1),
    "getEpochInfo": Method(get_epoch_info, (context_config,)),
    "getEpochSchedule": Method(lambda _node: _EPOCH_SCHEDULE),
    "getLatestBlockhash": Method(get_latest_blockhash, (context_config,), in_context=True),
    "isBlockhashValid": Method(is_blockhash_valid, (params.blockhash, context_config), 1, in_context=True),
    "getFeeForMessage": Method(get_fee_for_message, (params.string, context_config), 1),
    "getMinimumBalanceForRentExemption": Method(
        get_minimum_balance_for_rent_exemption, (params.usize, context_config), 1
    ),
    "getRecentPrioritizationFees": Method(get_recent_prioritization_fees, (_FEE_ADDRESSES,)),
    # The whole history is kept.
    "getFirstAvailableBlock": Method(lambda _node: 0),
    "minimumLedgerSlot": Method(lambda _node: 0),
}
