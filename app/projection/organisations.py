"""Events about an organisation: its roles, reserve and recipients."""

from sqlalchemy import select

from app.core.money import format_usdc
from app.projection.batch import Batch
from app.store.read_tables import recipients
from indexer import StoredEvent


def initialized(batch: Batch, row: StoredEvent) -> None:
    """Add the organisation's reserve."""
    data, org = row.data, str(row.org)
    if batch.reserves.get(org) is None:
        batch.reserves.change(
            org,
            {
                "org": org,
                "balance": 0,
                "slot": 0,
                "sequence": data["sequence"],
                "authority": data["authority"],
                "operator": data["operator"],
                "arbiter": data["arbiter"],
                "verifier": data["verifier"],
                "paused": False,
                "authority_attaches": False,
            },
        )
    batch.adopt_orphans(row, org)


def updated(batch: Batch, row: StoredEvent) -> None:
    """Set the organisation's roles, and the flags `paused` and `authority_attaches`. Report a pause and its end."""
    values = {name: row.data[name] for name in ("authority", "operator", "arbiter", "verifier")}
    flags = {name: bool(row.data[name]) for name in ("paused", "authority_attaches")}
    reserve = batch.reserves.get(str(row.org))
    was = None if reserve is None else reserve["paused"]
    _change(batch, row, {**values, **flags})
    if reserve is not None and reserve["paused"] != was:
        name, says = (
            ("org.paused", "All payments are paused") if flags["paused"] else ("org.resumed", "The pause ended")
        )
        batch.report(row, name, says, {"tx_signature": row.signature, "on_chain_slot": row.slot})


def authority_accepted(batch: Batch, row: StoredEvent) -> None:
    """Set the organisation's authority."""
    _change(batch, row, {"authority": row.data["authority"]})


def reserve_withdrawn(batch: Batch, row: StoredEvent) -> None:
    """Set the reserve's balance, and report the withdrawal if it was made by the service but has no attempt."""
    set_reserve(batch, row, row.data["reserve_balance"])
    batch.report_forgotten(row, {"recipient": row.data["destination"]})


def deposited(batch: Batch, row: StoredEvent) -> None:
    """Set the reserve's balance and report the deposit."""
    data = row.data
    set_reserve(batch, row, data["balance"])
    amount = format_usdc(data["amount"])
    fields = {"amount": amount, "org_balance": format_usdc(data["balance"])}
    shown = {**fields, "tx_signature": row.signature, "on_chain_slot": row.slot}
    batch.report(row, "org.deposit_confirmed", f"{amount} USDC arrived in the reserve", shown)


def recipient_registered(batch: Batch, row: StoredEvent) -> None:
    """Set the domain hash and category that the organisation registered for a recipient, and their effective time."""
    data = row.data
    key = (recipients.c.org == row.org, recipients.c.address == data["address"])
    last = batch.connection.scalar(select(recipients.c.sequence).where(*key))
    if last is None or last < data["sequence"]:
        values = {
            "org": row.org,
            "address": data["address"],
            "domain_hash": data["domain_hash"] if data["has_domain"] else None,
            "category": data["category"],
            "effective_at": data["effective_at"],
            "sequence": data["sequence"],
            "updated_at": batch.moment(row),
        }
        batch.put(recipients, values, keys=["org", "address"])


def set_reserve(batch: Batch, row: StoredEvent, balance: int) -> None:
    """Set the reserve's balance as of the row's slot. Within a slot, the row stored last wins."""
    reserve = batch.reserves.get(str(row.org))
    if reserve is None:
        batch.note_orphan(str(row.org))
    elif reserve["slot"] <= row.slot:
        batch.reserves.change(str(row.org), {"balance": balance, "slot": row.slot})


def _change(batch: Batch, row: StoredEvent, values: dict[str, object]) -> None:
    reserve = batch.reserves.get(str(row.org))
    if reserve is None:
        batch.note_orphan(str(row.org))
    elif reserve["sequence"] < row.data["sequence"]:
        batch.reserves.change(str(row.org), {**values, "sequence": row.data["sequence"]})
