"""RPC methods about the chain itself: slots, blockhashes, fees, health."""

from typing import Any

from solders.hash import Hash
from solders.message import from_bytes_versioned
from solders.pubkey import Pubkey

from app.localnet import params, transactions
from app.localnet.context import API_VERSION, Method, Node, context_config
from app.localnet.errors import INVALID_REQUEST, MethodError, block_not_available, invalid_params, node_unhealthy
from app.localnet.timeline import MAX_BLOCKHASH_AGE, SLOTS_PER_EPOCH

_MAX_DATA_SIZE = 10 * 1024 * 1024
_MESSAGE_TYPE = "solana_message::versions::VersionedMessage"


def get_health(node: Node) -> str:
    """Return "ok" while the chain can write to its disk."""
    if not node.chain.healthy:
        raise node_unhealthy()
    return "ok"


def get_version(_node: Node) -> dict[str, Any]:
    """Return the version whose RPC is followed; the feature set 0 marks this as no validator."""
    return {"feature-set": 0, "solana-core": API_VERSION}


def get_genesis_hash(node: Node) -> str:
    """Return the hash that tells this chain from any other."""
    return str(node.chain.timeline.genesis_hash)


def get_identity(node: Node) -> dict[str, str]:
    """Return the address that stands for the node."""
    return {"identity": str(node.identity)}


def get_slot(node: Node, config: dict[str, Any]) -> int:
    """Return the slot; every slot has a block, so this is the block height too."""
    return node.slot_for(config)


def get_transaction_count(node: Node, config: dict[str, Any]) -> int:
    """Return how many transactions were executed since genesis."""
    node.slot_for(config)
    return node.chain.transaction_count


def get_block_time(node: Node, slot: int) -> int:
    """Return the Unix second in which a past slot began."""
    if slot > node.chain.slot():
        raise block_not_available(slot)
    return node.chain.timeline.block_time(slot)


def get_epoch_info(node: Node, config: dict[str, Any]) -> dict[str, int]:
    """Return epoch and slot."""
    slot = node.slot_for(config)
    return {
        "absoluteSlot": slot,
        "blockHeight": slot,
        "epoch": slot // SLOTS_PER_EPOCH,
        "slotIndex": slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": node.chain.transaction_count,
    }


def get_epoch_schedule(_node: Node) -> dict[str, Any]:
    """Return the lengths of epochs."""
    return {
        "firstNormalEpoch": 0,
        "firstNormalSlot": 0,
        "leaderScheduleSlotOffset": SLOTS_PER_EPOCH,
        "slotsPerEpoch": SLOTS_PER_EPOCH,
        "warmup": False,
    }


def get_latest_blockhash(node: Node, config: dict[str, Any]) -> dict[str, Any]:
    """Return the blockhash of the newest slot at the commitment, and the last height at which it is good."""
    slot = node.slot_for(config)
    blockhash = str(node.chain.timeline.blockhash(slot))
    return node.with_context(config, {"blockhash": blockhash, "lastValidBlockHeight": slot + MAX_BLOCKHASH_AGE})


def is_blockhash_valid(node: Node, blockhash: Hash, config: dict[str, Any]) -> dict[str, Any]:
    """Tell whether a transaction may still name this blockhash."""
    valid = node.chain.timeline.slot_of_blockhash(blockhash, node.chain.slot()) is not None
    return node.with_context(config, valid)


def get_fee_for_message(node: Node, text: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the fee of a message in base64, null when its blockhash has expired."""
    raw = params.wire_bytes(text, "base64", _MESSAGE_TYPE)
    try:
        message = from_bytes_versioned(raw)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {_MESSAGE_TYPE}: {error}") from None
    known = node.chain.timeline.slot_of_blockhash(message.recent_blockhash, node.chain.slot()) is not None
    return node.with_context(config, transactions.fee(message) if known else None)


def get_minimum_balance_for_rent_exemption(node: Node, size: int, config: dict[str, Any]) -> int:
    """Return the lamports that keep an account of `size` bytes alive."""
    node.slot_for(config)
    if size > _MAX_DATA_SIZE:
        raise MethodError(INVALID_REQUEST, "Invalid request")
    return node.chain.bank.rent_minimum(size)


def get_recent_prioritization_fees(_node: Node, _addresses: list[Pubkey]) -> list[Any]:
    """Return nothing: priority fees are not charged."""
    return []


def first_slot(_node: Node) -> int:
    """Return the oldest slot that can be asked for."""
    return 0


METHODS = {
    "getHealth": Method(get_health),
    "getVersion": Method(get_version),
    "getGenesisHash": Method(get_genesis_hash),
    "getIdentity": Method(get_identity),
    "getSlot": Method(get_slot, (context_config,)),
    "getBlockHeight": Method(get_slot, (context_config,)),
    "getTransactionCount": Method(get_transaction_count, (context_config,)),
    "getBlockTime": Method(get_block_time, (params.u64,), 1),
    "getEpochInfo": Method(get_epoch_info, (context_config,)),
    "getEpochSchedule": Method(get_epoch_schedule),
    "getLatestBlockhash": Method(get_latest_blockhash, (context_config,)),
    "isBlockhashValid": Method(is_blockhash_valid, (params.blockhash, context_config), 1),
    "getFeeForMessage": Method(get_fee_for_message, (params.string, context_config), 1),
    "getMinimumBalanceForRentExemption": Method(
        get_minimum_balance_for_rent_exemption, (params.usize, context_config), 1
    ),
    "getRecentPrioritizationFees": Method(
        get_recent_prioritization_fees, (params.optional(params.sequence(params.pubkey, 128), []),)
    ),
    "getFirstAvailableBlock": Method(first_slot),
    "minimumLedgerSlot": Method(first_slot),
}
