"""RPC methods about past transactions. Only getSignatureStatuses shows transactions that are not written yet."""

from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet import params
from app.localnet.context import (
    COMMITMENT_FIELDS,
    TRANSACTION_ENCODINGS,
    Method,
    Node,
    commitment_of,
    transaction_encoding,
)
from app.localnet.encoding import Raw, block_transaction_json, transaction_json
from app.localnet.errors import BLOCK_NOT_AVAILABLE, TRANSACTION_NOT_FOUND, MethodError, invalid_params
from app.localnet.params import Commitment
from app.localnet.storage import to_json
from app.localnet.timeline import FINALIZED_DEPTH

_MAX_STATUSES = 256
_MAX_PAGE = 1000
_NO_BOUND = 2**62

_transaction_fields = params.config(
    "RpcTransactionConfig",
    {
        "commitment": params.commitment,
        "encoding": transaction_encoding,
        "maxSupportedTransactionVersion": params.unsigned("u8", 255),
    },
)
_addresses_fields = params.config(
    "RpcSignaturesForAddressConfig",
    {**COMMITMENT_FIELDS, "before": params.signature, "until": params.signature, "limit": params.usize},
)
_status_config = params.config("RpcSignatureStatusConfig", {"searchTransactionHistory": params.boolean})


def _transaction_config(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = {"encoding": value}
    if not isinstance(value, dict | None) or (value and value.get("encoding") not in (*TRANSACTION_ENCODINGS, None)):
        name = "RpcEncodingConfigWrapper"
        raise invalid_params(f"Invalid params: data did not match any variant of untagged enum {name}.")
    config: dict[str, Any] = _transaction_fields(value)
    return config


_block_fields = params.config(
    "RpcBlockConfig",
    {
        "commitment": params.commitment,
        "encoding": transaction_encoding,
        "transactionDetails": params.choice("full", "signatures", "none"),
        "rewards": params.boolean,
        "maxSupportedTransactionVersion": params.unsigned("u8", 255),
    },
)


def _block_config(value: Any) -> dict[str, Any]:
    config: dict[str, Any] = _block_fields({"encoding": value} if isinstance(value, str) else value)
    return config


def _written_commitment(config: dict[str, Any]) -> Commitment:
    commitment = commitment_of(config)
    if commitment is Commitment.PROCESSED:
        raise invalid_params("Method does not support commitment below `confirmed`")
    return commitment


def get_transaction(node: Node, signature: Signature, config: dict[str, Any]) -> Raw | None:
    """Return a transaction with its outcome, or null if it is unknown or below the commitment."""
    commitment = _written_commitment(config)
    stored = node.chain.storage.transaction(signature)
    if stored is None or node.chain.commitment_of_slot(stored.slot) < commitment:
        return None
    return transaction_json(stored, config.get("encoding", "json"), config.get("maxSupportedTransactionVersion"))


def get_block(node: Node, slot: int, config: dict[str, Any]) -> Raw:
    """Return a slot's block with its full transactions, their signatures, or neither.

    Every slot has a block, even if it is empty, so no slot is ever skipped.
    """
    commitment = _written_commitment(config)
    found = node.chain.block(slot, commitment)
    if found is None:
        raise MethodError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
    details = config.get("transactionDetails", "full")
    timeline = node.chain.timeline
    block: dict[str, Any] = {
        "blockHeight": slot,
        "blockTime": timeline.block_time(slot),
        "blockhash": str(timeline.blockhash(slot)),
        "parentSlot": max(0, slot - 1),
        "previousBlockhash": str(timeline.blockhash(slot - 1) if slot else Hash.default()),
    }
    if config.get("rewards", True):
        block["rewards"] = []
    if details == "signatures":
        block["signatures"] = [str(Signature(one.signature)) for one in found]
    members = to_json(block)
    if details != "full":
        return Raw(members)
    encoding, version = config.get("encoding", "json"), config.get("maxSupportedTransactionVersion")
    shown = ",".join(block_transaction_json(one, encoding, version) for one in found)
    return Raw(f'{members[:-1]},"transactions":[{shown}]}}')


def get_signature_statuses(node: Node, signatures: list[Signature], _config: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome and the commitment of transactions. This always searches the whole history."""
    current = node.chain.slot()
    return node.with_context({"commitment": Commitment.PROCESSED}, [_status(node, one, current) for one in signatures])


def _status(node: Node, signature: Signature, current: int) -> dict[str, Any] | None:
    found = node.chain.status(signature)
    if found is None:
        return None
    stored, commitment = found
    confirmations = {
        Commitment.PROCESSED: 0,
        Commitment.CONFIRMED: min(current - stored.slot, FINALIZED_DEPTH - 1),
        Commitment.FINALIZED: None,
    }
    return {
        "slot": stored.slot,
        "confirmations": confirmations[commitment],
        "err": stored.error,
        "status": {"Ok": None} if stored.err is None else {"Err": stored.error},
        "confirmationStatus": commitment.name.lower(),
    }


def get_signatures_for_address(node: Node, address: Pubkey, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transactions that mention an address, newest first, up to 1,000 between `before` and `until`."""
    limit = config.get("limit", _MAX_PAGE)
    if not 1 <= limit <= _MAX_PAGE:
        raise invalid_params(f"Invalid limit; max {_MAX_PAGE}")
    commitment = _written_commitment(config)
    node.slot_for(config)
    newest = node.chain.newest_at(commitment)
    before = _seq(node, config["before"]) if "before" in config else _NO_BOUND
    until = _seq(node, config["until"]) if "until" in config else 0
    return [
        {
            "signature": str(Signature(stored.signature)),
            "slot": stored.slot,
            "transactionIndex": stored.index,
            "err": stored.error,
            "memo": stored.memo,
            "blockTime": stored.block_time,
            "confirmationStatus": max(commitment, node.chain.commitment_of_slot(stored.slot)).name.lower(),
        }
        for stored in node.chain.storage.history_of(address, before, until, newest, limit)
    ]


def _seq(node: Node, signature: Signature) -> int:
    stored = node.chain.storage.status(signature)
    if stored is None:
        raise MethodError(TRANSACTION_NOT_FOUND, f"Transaction {signature} not found")
    return stored.seq


_SIGNATURES = params.sequence(params.signature, _MAX_STATUSES)

METHODS = {
    "getBlock": Method(get_block, (params.u64, _block_config), 1),
    "getTransaction": Method(get_transaction, (params.signature, _transaction_config), 1),
    "getSignatureStatuses": Method(get_signature_statuses, (_SIGNATURES, _status_config), 1),
    "getSignaturesForAddress": Method(get_signatures_for_address, (params.pubkey, _addresses_fields), 1),
}
