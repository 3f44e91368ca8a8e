"""Events about escrows, which move money between two wallets or from a wallet to an outside address."""

from typing import Any

from app.core.identifiers import escrow_id, wallet_id
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.core.transaction_types import A2A_RECEIVE, A2A_SEND, ESCROW_LOCK, ESCROW_REFUND, ESCROW_RELEASE
from app.projection.batch import Batch, Values
from app.projection.transfers import confirm, receive, report_payee, set_balance, spent, use_approval
from app.projection.wallets import change
from app.store.escrows import DISPUTED, FROM_LATER_EVENTS, LOCKED, PENDING, REFUNDED, RELEASED, SETTLED, UNDECIDED_AFTER
from indexer import StoredEvent

_COMPLETED = 1
_REFUND_REASONS = {2: "timeout", 4: "dispute", 5: "dispute", 6: "dispute_undecided"}
"""Reasons for refunds, by the code of the outcome."""
_NO_HASH = "00" * 32
_OF_A_DISPUTE = ("disputed_at", "disputed_by", "reason_hash", "evidence_hash", "dispute_signature")


def created(batch: Batch, row: StoredEvent) -> None:
    """Add the escrow to the read models and report its creation."""
    data = row.data
    use_approval(batch, row)
    known = spent(row, data["receiver"])
    locked = confirm(batch, row, ESCROW_LOCK, known)
    confirm(batch, row, A2A_SEND, known)
    set_balance(batch, row, data["balance"], locked["timestamp"])
    wallet = batch.wallets.get(data["vault"])
    if wallet is not None:
        batch.wallets.change(data["vault"], {"escrow_counter": max(wallet["escrow_counter"], data["counter"] + 1)})
    values = _terms(row) | {"tx_id": locked["tx_id"], "created_at": locked["timestamp"]}
    before = batch.escrows.get(data["escrow"])
    if before is not None and before["status"] != PENDING:
        # A withdrawn dispute may have changed the deadline.
        del values["deadline"]
    else:
        values |= {**dict.fromkeys(FROM_LATER_EVENTS), "status": LOCKED, "due_at": data["deadline"]}
    batch.escrows.change(data["escrow"], values)
    _report(
        batch,
        row,
        "escrow.created",
        f"{format_usdc(data['amount'])} USDC locked for {_to(values)}",
        {
            "amount": format_usdc(data["amount"]),
            "chain_address": data["escrow"],
            "task_hash": f"sha256:{data['task_hash']}",
            "expires_at": iso(data["deadline"]),
            "tx_id": locked["tx_id"],
        },
    )
    report_payee(batch, row, data["receiver"])
    batch.adopt_orphans(row, data["escrow"])


def disputed(batch: Batch, row: StoredEvent) -> None:
    """Mark the escrow as disputed, unless a later event has already changed its status, and report the dispute."""
    data = row.data
    change(batch, row, None, {})
    escrow = _known(batch, row)
    if escrow is None:
        return
    if data["sequence"] >= (escrow["dispute_sequence"] or 0):
        batch.escrows.change(data["escrow"], _dispute(row, escrow))
    evidence = None if data["evidence_hash"] == _NO_HASH else data["evidence_hash"]
    _report(
        batch,
        row,
        "escrow.disputed",
        f"Escrow {escrow['escrow_id']} of {format_usdc(escrow['amount'])} USDC disputed",
        {
            "amount": format_usdc(escrow["amount"]),
            "reason_hash": f"sha256:{data['reason_hash']}",
            "evidence": None if evidence is None else f"sha256:{evidence}",
        },
    )


def _dispute(row: StoredEvent, escrow: Values) -> Values:
    """Return the columns that a dispute changes in an escrow."""
    data = row.data
    values = {
        "disputed_at": data["timestamp"],
        "disputed_by": data["signer"],
        "reason_hash": data["reason_hash"],
        "evidence_hash": None if data["evidence_hash"] == _NO_HASH else data["evidence_hash"],
        "dispute_signature": row.signature,
        "dispute_sequence": data["sequence"],
    }
    if escrow["settled_at"] is None:
        values |= {"status": DISPUTED, "due_at": data["timestamp"] + UNDECIDED_AFTER}
    return values


def dispute_withdrawn(batch: Batch, row: StoredEvent) -> None:
    """Mark the escrow as locked with a new deadline, unless a later event has already changed its status.

    Report the withdrawal of the dispute.
    """
    data = row.data
    change(batch, row, None, {})
    escrow = _known(batch, row)
    if escrow is None:
        return
    if data["sequence"] >= (escrow["dispute_sequence"] or 0):
        values = {**dict.fromkeys(_OF_A_DISPUTE), "dispute_sequence": data["sequence"], "deadline": data["deadline"]}
        if escrow["settled_at"] is None:
            values |= {"status": LOCKED, "due_at": data["deadline"]}
        batch.escrows.change(data["escrow"], values)
    fields = {"amount": format_usdc(escrow["amount"]), "expires_at": iso(data["deadline"])}
    _report(batch, row, "escrow.dispute_withdrawn", f"Dispute of escrow {escrow['escrow_id']} withdrawn", fields)


def settled(batch: Batch, row: StoredEvent) -> None:
    """Add the paid shares, mark the escrow as released, refunded or split, and report it."""
    data = row.data
    escrow = _known(batch, row)
    paid = {
        "released": 0 if data["receiver_owed"] else data["released"],
        "refunded": 0 if data["vault_owed"] else data["refunded"],
    }
    _pay(batch, row, escrow, **paid)
    if escrow is not None:
        completed = data["outcome"] == _COMPLETED
        values = {
            "status": _status(data),
            **_owed(row, escrow, receiver=bool(data["receiver_owed"]), vault=bool(data["vault_owed"])),
            "released": data["released"],
            "refunded": data["refunded"],
            **_with_surplus(row, escrow),
            "output_hash": data["output_hash"] if completed else None,
            "proof_kind": data["proof_kind"] if completed else None,
            "settled_at": data["timestamp"],
            "settlement_signature": row.signature,
        }
        batch.escrows.change(data["escrow"], values)
        if data["outcome"] == _COMPLETED:
            identifier, fields = escrow["escrow_id"], {"output_hash": f"sha256:{data['output_hash']}"}
            fields["amount"] = format_usdc(data["amount"])
            _report(batch, row, "escrow.completed", f"Escrow {identifier} completed", fields)
        _report_payment(batch, row, escrow, reason=_REFUND_REASONS.get(data["outcome"], "shortfall"), **paid)


def collected(batch: Batch, row: StoredEvent) -> None:
    """Add and report the shares that a split had left in the escrow and that are paid now."""
    data = row.data
    escrow = _known(batch, row)
    paid = {"released": data["released"], "refunded": data["refunded"]}
    _pay(batch, row, escrow, **paid)
    if escrow is not None:
        remains = bool(data["remains"])
        # One of two shares was paid, so the other remains.
        receiver, vault = remains and not data["released"], remains and not data["refunded"]
        owed = _owed(row, escrow, receiver=receiver, vault=vault)
        batch.escrows.change(data["escrow"], owed | _with_surplus(row, escrow))
        _report_payment(batch, row, escrow, reason="dispute", **paid)


def _owed(row: StoredEvent, escrow: Values, *, receiver: bool, vault: bool) -> Values:
    """Return the columns of the shares still owed, unless a later event has set them."""
    if row.data["sequence"] < (escrow["settlement_sequence"] or 0):
        return {}
    due_at = row.data["timestamp"] if receiver or vault else None
    sequence = row.data["sequence"]
    return {"due_at": due_at, "receiver_owed": receiver, "vault_owed": vault, "settlement_sequence": sequence}


def _with_surplus(row: StoredEvent, escrow: Values) -> Values:
    """Return the escrow's column `surplus` after an event. The surplus may be paid in parts, by several events."""
    return {"surplus": (escrow["surplus"] or 0) + row.data["surplus"]}


def _pay(batch: Batch, row: StoredEvent, escrow: Values | None, *, released: int, refunded: int) -> None:
    """Add the rows and balances of the paid shares, each with the surplus that went to the same side."""
    data = row.data
    moment = batch.moment(row) if escrow is None else _moment(batch, row, escrow)
    if data["surplus_to_receiver"]:
        released += data["surplus"]
    else:
        refunded += data["surplus"]
    if released and data["receiver_is_vault"]:
        known = {
            "wallet_id": wallet_id(data["receiver"]),
            "recipient_address": data["receiver"],
            "amount": released,
            "timestamp": moment,
        }
        confirm(batch, row, ESCROW_RELEASE, known)
        confirm(batch, row, A2A_RECEIVE, known)
        receive(batch, row, data["receiver"], data["receiver_balance"], moment)
    if refunded:
        known = {"recipient_address": data["vault"], "amount": refunded, "timestamp": moment}
        confirm(batch, row, ESCROW_REFUND, known)
    set_balance(batch, row, data["vault_balance"], moment)


def _terms(row: StoredEvent) -> Values:
    """Return the terms of an escrow at its creation."""
    data = row.data
    names = ("vault", "receiver", "payer", "policy", "amount", "task_hash", "proof_kinds", "counter", "deadline")
    return {
        **{name: data[name] for name in names},
        "escrow_id": escrow_id(data["escrow"]),
        "org": row.org,
        "address": data["escrow"],
        "wallet_id": wallet_id(data["vault"]),
        "to_wallet": wallet_id(data["receiver"]) if data["receiver_is_vault"] else None,
        "output_commitment": data["output_commitment"] if data["has_output_commitment"] else None,
        "signature": row.signature,
    }


def _known(batch: Batch, row: StoredEvent) -> Values | None:
    """Return the event's escrow, or None if its creation has not been applied yet."""
    escrow = batch.escrows.get(row.data["escrow"])
    if escrow is None or escrow["status"] == PENDING:
        batch.note_orphan(row.data["escrow"])
        return None
    return escrow


def _status(data: dict[str, Any]) -> str:
    if data["refunded"] and data["released"]:
        return SETTLED
    return REFUNDED if data["refunded"] else RELEASED


def _moment(batch: Batch, row: StoredEvent, escrow: Values) -> int:
    """Return the time to show for an escrow's event.

    Unless the creation is in the same transaction, the time is later than the creation's.
    """
    after = escrow["created_at"] + (row.signature != escrow["signature"])
    return max(batch.moment(row), int(after))


def _to(escrow: Values) -> str:
    return str(escrow["to_wallet"] or escrow["receiver"])


def _report_payment(
    batch: Batch, row: StoredEvent, escrow: Values, *, released: int, refunded: int, reason: str
) -> None:
    """Report the paid shares, each in its own event. The first event also reports a surplus."""
    identifier, surplus = escrow["escrow_id"], {}
    if row.data["surplus"]:
        to = _to(escrow) if row.data["surplus_to_receiver"] else escrow["wallet_id"]
        surplus = {"surplus_amount": format_usdc(row.data["surplus"]), "surplus_to": to}
    if released:
        amount = format_usdc(released)
        fields = {"amount": amount, **surplus}
        _report(batch, row, "escrow.released", f"{amount} USDC of escrow {identifier} released", fields)
    if refunded:
        amount = format_usdc(refunded)
        fields = {"amount": amount, "reason": reason, **({} if released else surplus)}
        severity = "critical" if reason.startswith("dispute") else None
        _report(batch, row, "escrow.refunded", f"{amount} USDC of escrow {identifier} refunded", fields, severity)


def _report(  # noqa: PLR0917
    batch: Batch, row: StoredEvent, name: str, summary: str, fields: Values, severity: str | None = None
) -> None:
    escrow = batch.escrows.get(row.data["escrow"])
    assert escrow is not None
    parties = {"escrow_id": escrow["escrow_id"], "from_wallet": escrow["wallet_id"], "to_wallet": _to(escrow)}
    batch.report(
        row,
        name,
        summary,
        {**parties, **fields, "tx_signature": row.signature, "on_chain_slot": row.slot},
        moment=_moment(batch, row, escrow),
        wallet_id=escrow["wallet_id"],
        other_wallet_id=escrow["to_wallet"],
        severity=severity,
    )
