"""Events about allowances, including spending data read by the indexer."""

from app.core.identifiers import allowance_id, wallet_id
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.core.transaction_types import ESCROW_REFUND, PAYMENT
from app.projection.batch import Batch, Values, address_or_none
from app.projection.transfers import confirm, report_payee, set_balance, spent, use_approval
from app.store.allowances import OF_SETTLEMENT, OUTSTANDING, PENDING, SETTLED
from indexer import StoredEvent


def granted(batch: Batch, row: StoredEvent) -> None:
    """Add the allowance, and a payment row because the policy judged and charged it as a payment. Report the grant."""
    data = row.data
    use_approval(batch, row)
    paid = confirm(batch, row, PAYMENT, spent(row, data["recipient"]))
    set_balance(batch, row, data["balance"], paid["timestamp"])
    wallet = batch.wallets.get(data["vault"])
    if wallet is not None:
        counter = max(wallet["allowance_counter"], data["counter"] + 1)
        batch.wallets.change(data["vault"], {"allowance_counter": counter})
    values = _terms(row) | {"tx_id": paid["tx_id"], "created_at": paid["timestamp"]}
    before = batch.allowances.get(data["allowance"])
    if before is None or before["status"] == PENDING:
        values |= {**dict.fromkeys(OF_SETTLEMENT), "status": OUTSTANDING, "due_at": data["expires_at"]}
    batch.allowances.change(data["allowance"], values)
    fields = {name: data[name] for name in ("recipient", "destination", "delegate", "reference")}
    fields |= {"expires_at": iso(data["expires_at"]), "tx_id": paid["tx_id"]}
    amount = format_usdc(data["amount"])
    _report(batch, row, "allowance.granted", f"{amount} USDC set aside for {data['recipient']}", fields)
    report_payee(batch, row, data["recipient"])
    batch.adopt_orphans(row, data["allowance"])


def settled(batch: Batch, row: StoredEvent) -> None:
    """Mark the allowance as settled, add a row for the returned amount, and report the settlement."""
    data = row.data
    known = _known(batch, row)
    moment = _moment(batch, row, known)
    if data["swept"]:
        back = {"recipient_address": data["vault"], "amount": data["swept"], "timestamp": moment}
        confirm(batch, row, ESCROW_REFUND, back)
    set_balance(batch, row, data["vault_balance"], moment)
    if known is None:
        return
    values = {
        "status": SETTLED,
        "due_at": None,
        "spent": data["spent"],
        "returned": data["swept"],
        "settled_at": data["timestamp"],
        "settlement_signature": row.signature,
    }
    batch.allowances.change(data["allowance"], values)
    fields = {
        "reference": data["reference"],
        "spent": format_usdc(data["spent"]),
        "returned": format_usdc(data["swept"]),
    }
    summary = f"Allowance {known['allowance_id']} settled: {fields['spent']} USDC spent"
    _report(batch, row, "allowance.settled", summary, fields, moment)


def read(batch: Batch, row: StoredEvent) -> None:
    """Store the delegate's transfers, and report a discrepancy if their total differs from the spent amount.

    Also reports a discrepancy if a transfer was not signed by the delegate, or did not arrive at the grant's
    destination.
    """
    data = row.data
    known = _known(batch, row)
    if known is None:
        return
    batch.allowances.change(data["allowance"], {"transfers": data["transfers"]})
    if data["seen"] == data["spent"] == data["arrived"] and data["signed_by_delegate"]:
        return
    fields = {name: format_usdc(data[name]) for name in ("spent", "seen", "arrived")}
    fields |= {"signed_by_delegate": data["signed_by_delegate"], "transfers": data["transfers"]}
    summary = (
        f"Allowance {known['allowance_id']}: {fields['spent']} USDC spent, {fields['seen']} seen leaving, "
        f"{fields['arrived']} arrived at the destination"
    )
    _report(batch, row, "allowance.discrepancy", summary, fields, _moment(batch, row, known))


def _terms(row: StoredEvent) -> Values:
    """Return the terms of an allowance at its grant."""
    data = row.data
    names = ("vault", "policy", "recipient", "destination", "delegate", "tokens", "payer", "reference", "amount")
    return {
        **{name: data[name] for name in (*names, "counter", "expires_at")},
        "budget": address_or_none(data["budget"]),
        "sequence": data["sequence"],
        "policy_version": data["policy_version"],
        "allowance_id": allowance_id(data["allowance"]),
        "org": row.org,
        "address": data["allowance"],
        "wallet_id": wallet_id(data["vault"]),
        "signature": row.signature,
    }


def _known(batch: Batch, row: StoredEvent) -> Values | None:
    """Return the event's allowance, or None if its grant has not been applied yet."""
    known = batch.allowances.get(row.data["allowance"])
    if known is None or known["status"] == PENDING:
        batch.note_orphan(row.data["allowance"])
        return None
    return known


def _moment(batch: Batch, row: StoredEvent, known: Values | None) -> int:
    """Return the time to show for an allowance's event.

    Unless the grant is in the same transaction, the time is later than the grant's.
    """
    moment = batch.moment(row)
    return moment if known is None else max(moment, known["created_at"] + (row.signature != known["signature"]))


def _report(  # noqa: PLR0917
    batch: Batch, row: StoredEvent, name: str, summary: str, fields: Values, moment: int | None = None
) -> None:
    known = batch.allowances.get(row.data["allowance"])
    assert known is not None
    shared = {
        "allowance_id": known["allowance_id"],
        "wallet_id": known["wallet_id"],
        "amount": format_usdc(known["amount"]),
        "tx_signature": row.signature,
        "on_chain_slot": row.slot,
    }
    batch.report(row, name, summary, {**shared, **fields}, moment=moment, wallet_id=known["wallet_id"])
