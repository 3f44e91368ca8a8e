"""Events that move money: they become rows of the transaction list."""

from typing import Any

from sqlalchemy import Row

from app.core.identifiers import event_id, wallet_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.projection import orphans
from app.projection.batch import Batch, Values, transaction_of
from app.projection.organisations import set_reserve
from app.projection.rows import ChainRow, address_or_none
from app.projection.wallets import change, spend_approval
from app.store.transactions import FUNDING, PAYMENT, WITHDRAWAL


def paid(batch: Batch, row: ChainRow) -> bool:
    """Add the payment and report it."""
    data = row.data
    use_approval(batch, row)
    shown = confirm(batch, row, PAYMENT, spent(row, data["recipient"]))
    set_balance(batch, row, data["balance"], shown["timestamp"])
    fields = {"recipient": shown["recipient"], "policy_triggered": shown["policy_triggered"]}
    _report(batch, row, "transaction.completed", shown, f"paid to {shown['recipient']}", fields)
    return False


def funded(batch: Batch, row: ChainRow) -> bool:
    """Add the funding and report it."""
    data = row.data
    shown = confirm(batch, row, FUNDING, {"recipient_address": data["vault"]})
    set_balance(batch, row, data["vault_balance"], shown["timestamp"])
    set_reserve(batch, row, data["reserve_balance"])
    fields = {"usdc_balance": format_usdc(data["vault_balance"])}
    _report(batch, row, "wallet.funded", shown, f"allocated to {shown['wallet_id']}", fields)
    return False


def withdrawn(batch: Batch, row: ChainRow) -> bool:
    """Add the withdrawal."""
    data = row.data
    shown = confirm(batch, row, WITHDRAWAL, {"recipient_address": row.org})
    set_balance(batch, row, data["vault_balance"], shown["timestamp"])
    set_reserve(batch, row, data["reserve_balance"])
    return False


def observed(batch: Batch, row: ChainRow) -> bool:
    """Set a balance that was read from the chain, or changed by a deposit."""
    data = row.data
    if data["vault"] is None:
        set_reserve(batch, row, data["balance"])
        return False
    wallet = batch.wallet(data["vault"])
    # A vault that is not known yet gets its balance from its next event, or is compared again.
    if wallet is not None and wallet["balance_slot"] <= row.slot:
        funded_now = wallet["funded"] or data["balance"] > 0
        changes = {"balance": data["balance"], "balance_slot": row.slot, "funded": funded_now}
        batch.change_wallet(data["vault"], changes)
    return False


def spent(row: ChainRow, recipient: str) -> Values:
    """Return what the row of a payment, or of what is judged like one, shows of its event."""
    data = row.data
    return {
        "recipient_address": recipient,
        "policy_triggered": bool(data["co_signed"]),
        "attestation_hash": f"sha256:{row.message_hash}" if data["by_session"] else None,
    }


def use_approval(batch: Batch, row: ChainRow) -> None:
    """Mark the approval, if the event names one, as used."""
    approval = address_or_none(row.data["approval"])
    if approval is not None:
        spend_approval(batch, row, approval, "used")


def confirm(batch: Batch, row: ChainRow, row_type: str, known: Values) -> Values:
    """Put a confirmed row into the list, joined with what only the service knows, and settle the attempt."""
    data = row.data
    values = {
        "tx_id": transaction_of(row, row_type),
        "org": row.org,
        "wallet_id": wallet_id(data["vault"]),
        "type": row_type,
        "recipient": known["recipient_address"],
        "amount": data["amount"],
        "status": "confirmed",
        "signature": row.signature,
        "slot": row.slot,
        "policy_id": None,
        "policy_triggered": False,
        "memo": None,
        "attestation_hash": None,
        "violation": None,
        "error": None,
        "timestamp": batch.moment(row),
        **known,
    }
    attempt = batch.attempt(row)
    if attempt is not None:
        values |= _remembered(attempt)
        if attempt.type == row_type:
            # The event may stand in another place than the attempt's id was made of; that id was given out.
            values["tx_id"] = attempt.tx_id
            batch.settle(attempt.tx_id, row.slot, batch.moment(row))
    # Only what a policy judges shows one; what a vault's policy was at a funding does not follow from its event.
    if values["policy_id"] is None and "policy" in data:
        values["policy_id"] = batch.policy_id(data["policy"])
        if values["policy_id"] is None:
            orphans.note(batch, data["policy"])
    batch.put_transaction(values)
    return values


def _remembered(attempt: Row[Any]) -> Values:
    values = {"memo": attempt.memo, "timestamp": attempt.created_at}
    if attempt.recipient is not None:
        values["recipient"] = attempt.recipient
    if attempt.policy_id is not None:
        values["policy_id"] = attempt.policy_id
    return values


def set_balance(batch: Batch, row: ChainRow, balance: int, moment: int) -> None:
    """Set the vault's balance unless a later event has, and the time of its last transaction."""
    wallet = change(batch, row, None, {})
    if wallet is None:
        return
    changes: Values = {"last_transaction_at": max(wallet["last_transaction_at"] or 0, moment), "funded": True}
    if wallet["blocked_at"] is not None and wallet["blocked_at"] <= moment:
        changes["blocked_at"] = None
    as_of = (row.slot, row.data["sequence"])
    if (wallet["balance_slot"], wallet["balance_sequence"]) < as_of:
        changes |= {"balance": balance, "balance_slot": as_of[0], "balance_sequence": as_of[1]}
    batch.change_wallet(row.data["vault"], changes)


def receive(batch: Batch, row: ChainRow, vault: str, balance: int, moment: int) -> None:
    """Set the balance of a vault that another vault's event paid: of one slot the row stored last counts."""
    wallet = batch.wallet(vault)
    if wallet is None:
        orphans.note(batch, vault)
        return
    changes: Values = {
        "last_transaction_at": max(wallet["last_transaction_at"] or 0, moment),
        "updated_at": max(wallet["updated_at"], batch.moment(row)),
        "funded": True,
    }
    if wallet["balance_slot"] <= row.slot:
        changes |= {"balance": balance, "balance_slot": row.slot}
    batch.change_wallet(vault, changes)


def _report(  # noqa: PLR0917
    batch: Batch, row: ChainRow, name: str, shown: Values, what: str, fields: Values
) -> None:
    amount = format_usdc(row.data["amount"])
    batch.report(
        event_id=event_id(row.signature, row.instruction, row.inner, name),
        org=str(row.org),
        type=name,
        timestamp=batch.moment(row),
        wallet_id=shown["wallet_id"],
        signature=row.signature,
        summary=f"{amount} USDC {what}",
        payload={
            "wallet_id": shown["wallet_id"],
            "tx_id": shown["tx_id"],
            "tx_signature": row.signature,
            "amount": amount,
            **fields,
            "on_chain_slot": row.slot,
            "timestamp": iso_ms(shown["timestamp"]),
        },
    )
