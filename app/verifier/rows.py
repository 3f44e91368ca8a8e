"""Derives the rows that an export must have from the program's events, and compares the export's rows with them."""

from collections.abc import Iterator
from dataclasses import dataclass

from solders.pubkey import Pubkey

from app.core.identifiers import (
    ALLOWANCE_EVENT_INNER_INDEX,
    ESCROW_EVENT_INNER_INDEX,
    EVENT_INNER_INDEX,
    policy_key,
    transaction_id,
    wallet_id,
)
from app.core.money import format_usdc
from app.core.timestamps import iso, parse_iso_ms
from app.exports.layout import PARTS
from app.verifier.document import Row
from app.verifier.history import Landed
from idl.transactions import ChainEvent

TOLERANCE = 300
"""Maximum seconds between a row's `timestamp`, which is the time of its request, and the time of its block."""
_EXPECTED_INNER = {
    ("PaymentExecuted", "payment"): EVENT_INNER_INDEX,
    ("WalletFunded", "funding"): EVENT_INNER_INDEX,
    ("WalletWithdrawn", "withdrawal"): EVENT_INNER_INDEX,
    ("EscrowCreated", "escrow_lock"): ESCROW_EVENT_INNER_INDEX,
    ("AllowanceGranted", "payment"): ALLOWANCE_EVENT_INNER_INDEX,
}
"""By event and type of row, the inner index that the service expects for the event.

The service derives the id of the row from this index before it sends the transaction.
"""
_UNJUDGED = ("funding", "withdrawal")
"""Types of requests that no policy judges. Only the service vouches for the policy shown in such a row."""
_REQUESTED = ("wallet_id", "type", "amount", "currency")
"""Columns that a row has from the beginning, regardless of its outcome. Judged types also have `recipient_address`."""


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """A movement of money according to the chain.

    `ids` maps the possible ids of its row in the export to the index of the event among the inner instructions.
    `names` are the recipients that the row may show.
    """

    ids: dict[str, int]
    org: str
    signature: str
    slot: int
    block_time: int | None
    instruction: int
    type: str
    wallet_id: str
    recipient: str
    names: frozenset[str]
    amount: int
    policy: Pubkey | None
    triggered: bool
    attestation: str | None

    def __str__(self) -> str:
        """Describe the movement in a few words."""
        where = f"{self.signature} (slot {self.slot})"
        return f"{self.type} of {format_usdc(self.amount)} USDC, {self.wallet_id}, to {self.recipient}, in {where}"


def rows_of(landed: Landed) -> Iterator[ExpectedRow]:
    """Yield the export rows that follow from a transaction's events."""
    for place in landed.events:
        data = place.event.data
        match place.event.name:
            case "PaymentExecuted" | "AllowanceGranted":
                yield _row(landed, place, "payment", data["vault"], data["recipient"], data["amount"])
            case "AllowanceSettled" if data["swept"]:
                yield _row(landed, place, "escrow_refund", data["vault"], data["vault"], data["swept"])
            case "WalletFunded":
                yield _row(landed, place, "funding", data["vault"], data["vault"], data["amount"])
            case "WalletWithdrawn":
                yield _row(landed, place, "withdrawal", data["vault"], data["org"], data["amount"])
            case "EscrowCreated":
                for type_ in ("escrow_lock", "a2a_send"):
                    yield _row(landed, place, type_, data["vault"], data["receiver"], data["amount"])
            case "EscrowSettled" | "EscrowCollected":
                # If a party could not be paid at the settlement, its row follows when its share is collected.
                released = 0 if data.get("receiver_owed") else data["released"]
                refunded = 0 if data.get("vault_owed") else data["refunded"]
                if data["surplus_to_receiver"]:
                    released += data["surplus"]
                else:
                    refunded += data["surplus"]
                if released and data["receiver_is_vault"]:
                    for type_ in ("escrow_release", "a2a_receive"):
                        yield _row(landed, place, type_, data["receiver"], data["receiver"], released)
                if refunded:
                    yield _row(landed, place, "escrow_refund", data["vault"], data["vault"], refunded)


def _row(  # noqa: PLR0917
    landed: Landed, place: ChainEvent, type_: str, vault: Pubkey, recipient: Pubkey, amount: int
) -> ExpectedRow:
    data = place.event.data
    names = {str(recipient), wallet_id(recipient)}
    if type_ == "withdrawal":
        # A row shows the reserve as the organisation's token account.
        names |= {account for account, owner in landed.owners.items() if owner == str(recipient)}
    inners = (place.inner, _EXPECTED_INNER.get((place.event.name, type_), place.inner))
    return ExpectedRow(
        ids={transaction_id(landed.message_hash, place.instruction, inner, type_): inner for inner in inners},
        org=str(data["org"]),
        signature=landed.signature,
        slot=landed.slot,
        block_time=landed.block_time,
        instruction=place.instruction,
        type=type_,
        wallet_id=wallet_id(vault),
        recipient=str(recipient),
        names=frozenset(names),
        amount=amount,
        policy=data.get("policy"),
        triggered=bool(data.get("co_signed")),
        attestation=f"sha256:{landed.message_hash}" if data.get("by_session") else None,
    )


def differences(row: Row, chain: ExpectedRow, program_id: Pubkey) -> Iterator[str]:
    """Yield each difference between an exported row and the chain's row. Columns that the file lacks are left out."""
    yield from _unlike(row, _expected(row, chain))
    if "recipient" in row and not is_name(row["recipient"]) and row["recipient"] not in chain.names:
        yield f"recipient is {row['recipient'] or 'empty'} in the export, {chain.recipient} on the chain"
    if "policy_id" in row and chain.type not in _UNJUDGED and not _is_policy(row["policy_id"], chain, program_id):
        yield f"policy_id is {row['policy_id'] or 'empty'} in the export, the chain has {chain.policy or 'no policy'}"
    if chain.block_time is not None and not _is_near(row["timestamp"], chain.block_time):
        yield f"timestamp is {row['timestamp'] or 'empty'} in the export, {iso(chain.block_time)} on the chain"


def differences_before(row: Row, chain: ExpectedRow) -> Iterator[str]:
    """Yield each difference between the chain's row and a row that was exported before it landed."""
    expected = _expected(row, chain)
    names = _REQUESTED if chain.type in _UNJUDGED else (*_REQUESTED, "recipient_address")
    yield from _unlike(row, {name: expected[name] for name in names})


def _expected(row: Row, chain: ExpectedRow) -> Row:
    return {
        "id": row["tx_id"],
        "wallet_id": chain.wallet_id,
        "type": chain.type,
        "amount": format_usdc(chain.amount),
        "currency": "USDC",
        "status": "confirmed",
        "tx_signature": chain.signature,
        "on_chain_slot": str(chain.slot),
        "policy_triggered": "true" if chain.triggered else "false",
        "agent_attestation_hash": chain.attestation,
        "recipient_address": chain.recipient,
        "instruction_index": str(chain.instruction),
        "inner_index": str(chain.ids[row["tx_id"] or ""]),
        **dict.fromkeys(f"violation_{part}" for part in PARTS["violation"]),
    }


def _unlike(row: Row, expected: Row) -> Iterator[str]:
    for name, value in expected.items():
        if name in row and row[name] != value:
            yield f"{name} is {row[name] or 'empty'} in the export, {value or 'empty'} on the chain"


def is_name(recipient: str | None) -> bool:
    """Return True if a recipient is a domain. The chain has only a domain's hash."""
    return recipient is not None and "." in recipient


def shows_off_chain_policy(row: Row) -> bool:
    """Return True if a row shows a policy that the row's event does not name."""
    return row["type"] in _UNJUDGED and row.get("policy_id") is not None


def _is_policy(shown: str | None, chain: ExpectedRow, program_id: Pubkey) -> bool:
    """Return True if the address derived from a policy's id is the policy account that the event names.

    Without an id, return True if the event names no policy.
    """
    if shown is None or chain.policy is None:
        return shown is None and chain.policy is None
    try:
        seeds = [b"policy", bytes(Pubkey.from_string(chain.org)), policy_key(shown)]
    except ValueError:
        return False
    return Pubkey.find_program_address(seeds, program_id)[0] == chain.policy


def _is_near(shown: str | None, block_time: int) -> bool:
    try:
        return abs(parse_iso_ms(shown or "") - block_time * 1000) <= TOLERANCE * 1000
    except ValueError:
        return False
