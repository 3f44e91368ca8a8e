"""Events that move money, which become rows of the transaction list, and observed balances, which do not."""

from app.core.identifiers import wallet_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.core.transaction_types import FUNDING, PAYMENT, ROW_OF, WITHDRAWAL
from app.projection.batch import ATTEMPT_TYPES, Batch, Values, address_or_none, transaction_of
from app.projection.organisations import set_reserve
from app.projection.wallets import change, spend_approval
from app.store.attempts import Attempt
from indexer import StoredEvent

#: Bits of the field `payee` of events.
_FIRST_PAID, _KNOWN = 1, 2


def paid(batch: Batch, row: StoredEvent) -> None:
    """Add the payment to the transaction list, set the vault's balance, and report the payment."""
    data = row.data
    use_approval(batch, row)
    shown = confirm(batch, row, PAYMENT, spent(row, data["recipient"]))
    set_balance(batch, row, data["balance"], shown["timestamp"])
    fields = {"recipient": shown["recipient"], "policy_triggered": shown["policy_triggered"]}
    _report(batch, row, "transaction.completed", shown, f"paid to {shown['recipient']}", fields)
    report_payee(batch, row, data["recipient"])


def funded(batch: Batch, row: StoredEvent) -> None:
    """Add the funding to the transaction list, set the balances of vault and reserve, and report the funding."""
    data = row.data
    shown = confirm(batch, row, FUNDING, {"recipient_address": data["vault"]})
    set_balance(batch, row, data["vault_balance"], shown["timestamp"])
    set_reserve(batch, row, data["reserve_balance"])
    fields = {"usdc_balance": format_usdc(data["vault_balance"])}
    _report(batch, row, "wallet.funded", shown, f"allocated to {shown['wallet_id']}", fields)


def withdrawn(batch: Batch, row: StoredEvent) -> None:
    """Add the withdrawal to the transaction list, and set the balances of vault and reserve."""
    data = row.data
    shown = confirm(batch, row, WITHDRAWAL, {"recipient_address": row.org})
    set_balance(batch, row, data["vault_balance"], shown["timestamp"])
    set_reserve(batch, row, data["reserve_balance"])


def observed(batch: Batch, row: StoredEvent) -> None:
    """Set a balance that was read from the chain or changed by a deposit."""
    data = row.data
    if data["vault"] is None:
        set_reserve(batch, row, data["balance"])
        return
    wallet = batch.wallets.get(data["vault"])
    # An unknown vault gets its balance from its next event or the next comparison.
    if wallet is not None:
        funded_now = wallet["funded"] or data["balance"] > 0
        batch.wallets.change(data["vault"], _unnumbered(wallet, row, data["balance"]) | {"funded": funded_now})


def spent(row: StoredEvent, recipient: str) -> Values:
    """Return the columns that the event of a payment, escrow or allowance determines in its transaction row."""
    data = row.data
    return {
        "recipient_address": recipient,
        "policy_triggered": bool(data["co_signed"]),
        "attestation_hash": f"sha256:{row.message_hash}" if data["by_session"] else None,
    }


def use_approval(batch: Batch, row: StoredEvent) -> None:
    """Mark the event's approval, if any, as used."""
    approval = address_or_none(row.data["approval"])
    if approval is not None:
        spend_approval(batch, row, approval, "used")


def report_payee(batch: Batch, row: StoredEvent, recipient: str) -> None:
    """Report the first payment to a new recipient. Also report that a recipient has become known."""
    # Rows of an older database lack the field.
    wallet, bits = wallet_id(row.data["vault"]), row.data.get("payee", 0)
    fields = {"wallet_id": wallet, "recipient": recipient}
    if bits & _FIRST_PAID:
        shown = {**fields, "amount": format_usdc(row.data["amount"])}
        batch.report(row, "recipient.first_paid", f"First payment to {recipient}", shown, wallet_id=wallet)
    if bits & _KNOWN:
        batch.report(row, "recipient.known", f"{recipient} is a known recipient", fields, wallet_id=wallet)


def confirm(batch: Batch, row: StoredEvent, row_type: str, known: Values) -> Values:
    """Add a confirmed row to the list, with the data of the service's attempt if there is one. Confirm that attempt."""
    data = row.data
    values = {
        "tx_id": transaction_of(row, row_type),
        "org": row.org,
        "wallet_id": wallet_id(data["vault"]),
        "type": row_type,
        "recipient": known["recipient_address"],
        "amount": data.get("amount"),
        "status": "confirmed",
        "signature": row.signature,
        "instruction_index": row.instruction,
        "inner_index": row.inner,
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
        if ROW_OF[attempt.type] == row_type:
            # Keep the id that was given out, even if it was derived from another position of the event.
            values |= {name: getattr(attempt, name) for name in ("tx_id", "instruction_index", "inner_index")}
            batch.confirm_attempt(attempt.tx_id, row)
    # Only rows that a policy judged show a policy. A funding's event does not contain the vault's policy at that time.
    if values["policy_id"] is None and "policy" in data:
        values["policy_id"] = batch.policy_id(data["policy"])
        if values["policy_id"] is None:
            batch.note_orphan(data["policy"])
    batch.put_transaction(values)
    if row.name in ATTEMPT_TYPES:
        batch.report_forgotten(row, values)
    return values


def _remembered(attempt: Attempt) -> Values:
    values = {"memo": attempt.memo, "timestamp": attempt.created_at}
    if attempt.recipient is not None:
        values["recipient"] = attempt.recipient
    if attempt.policy_id is not None:
        values["policy_id"] = attempt.policy_id
    return values


def set_balance(batch: Batch, row: StoredEvent, balance: int, moment: int) -> None:
    """Set the time of the vault's last transaction and, unless a later event has set it, the vault's balance."""
    wallet = change(batch, row, None, {})
    if wallet is None:
        return
    changes: Values = {"last_transaction_at": max(wallet["last_transaction_at"] or 0, moment), "funded": True}
    if wallet["blocked_at"] is not None and wallet["blocked_at"] <= moment:
        changes["blocked_at"] = None
    as_of = (row.slot, row.data["sequence"])
    if (wallet["balance_slot"], wallet["balance_sequence"]) < as_of:
        changes |= {"balance": balance, "balance_slot": as_of[0], "balance_sequence": as_of[1], "balance_row": row.id}
    batch.wallets.change(row.data["vault"], changes)


def receive(batch: Batch, row: StoredEvent, vault: str, balance: int, moment: int) -> None:
    """Set the balance of a vault that received money in another vault's event."""
    wallet = batch.wallets.get(vault)
    if wallet is None:
        batch.note_orphan(vault)
        return
    changes: Values = {
        "last_transaction_at": max(wallet["last_transaction_at"] or 0, moment),
        "updated_at": max(wallet["updated_at"], batch.moment(row)),
        "funded": True,
    }
    batch.wallets.change(vault, changes | _unnumbered(wallet, row, balance))


def _unnumbered(wallet: Values, row: StoredEvent, balance: int) -> Values:
    """Return the columns of a balance from a row without a sequence number of the vault.

    Within a slot, the row stored last wins, by its id. Otherwise, when rows are applied again, an earlier balance would
    replace the balance after a later payment in the same slot. The payment's balance would not be set again, because
    its sequence number is already stored.
    """
    if (wallet["balance_slot"], wallet["balance_row"]) >= (row.slot, row.id):
        return {}
    return {"balance": balance, "balance_slot": row.slot, "balance_row": row.id}


def _report(  # noqa: PLR0917
    batch: Batch, row: StoredEvent, name: str, shown: Values, what: str, fields: Values
) -> None:
    amount = format_usdc(row.data["amount"])
    payload = {
        "wallet_id": shown["wallet_id"],
        "tx_id": shown["tx_id"],
        "tx_signature": row.signature,
        "amount": amount,
        **fields,
        "on_chain_slot": row.slot,
        "timestamp": iso_ms(shown["timestamp"]),
    }
    batch.report(row, name, f"{amount} USDC {what}", payload, wallet_id=shown["wallet_id"])
