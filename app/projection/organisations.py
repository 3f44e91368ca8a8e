"""Events about an organisation: its roles, its reserve, its recipients."""

from sqlalchemy import select

from app.core.identifiers import event_id
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.projection import orphans
from app.projection.batch import Batch
from app.projection.rows import ChainRow
from app.store.read_tables import recipients


def initialized(batch: Batch, row: ChainRow) -> bool:
    """Add the organisation's reserve; returns whether events about it came before."""
    data, org = row.data, str(row.org)
    if batch.reserve(org) is None:
        batch.change_reserve(
            org,
            {
                "org": org,
                "balance": 0,
                "slot": 0,
                "sequence": data["sequence"],
                "authority": data["authority"],
                "operator": data["operator"],
                "paused": False,
            },
        )
    return orphans.adopt(batch, org)


def updated(batch: Batch, row: ChainRow) -> bool:
    """Set the organisation's roles."""
    values = {name: row.data[name] for name in ("authority", "operator")}
    return _change(batch, row, {**values, "paused": bool(row.data["paused"])})


def authority_accepted(batch: Batch, row: ChainRow) -> bool:
    """Set the organisation's authority."""
    return _change(batch, row, {"authority": row.data["authority"]})


def reserve_withdrawn(batch: Batch, row: ChainRow) -> bool:
    """Set the reserve's balance."""
    set_reserve(batch, row, row.data["reserve_balance"])
    return False


def deposited(batch: Batch, row: ChainRow) -> bool:
    """Set the reserve's balance and report the deposit."""
    data = row.data
    set_reserve(batch, row, data["balance"])
    batch.report(
        # A deposit has no event of the program; its token account's position tells it apart within the transaction.
        event_id=event_id(row.signature, 0, row.inner, "org.deposit_confirmed"),
        org=str(row.org),
        type="org.deposit_confirmed",
        timestamp=batch.moment(row),
        signature=row.signature,
        summary=f"{format_usdc(data['amount'])} USDC arrived in the reserve",
        payload={
            "amount": format_usdc(data["amount"]),
            "org_balance": format_usdc(data["balance"]),
            "tx_signature": row.signature,
            "on_chain_slot": row.slot,
            "timestamp": iso_ms(batch.moment(row)),
        },
    )
    return False


def recipient_registered(batch: Batch, row: ChainRow) -> bool:
    """Set what the organisation says about a recipient."""
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
    return False


def set_reserve(batch: Batch, row: ChainRow, balance: int) -> None:
    """Set the reserve's balance as of the row's slot; within a slot the row stored last counts."""
    reserve = batch.reserve(str(row.org))
    if reserve is None:
        orphans.note(batch, str(row.org))
    elif reserve["slot"] <= row.slot:
        batch.change_reserve(str(row.org), {"balance": balance, "slot": row.slot})


def _change(batch: Batch, row: ChainRow, values: dict[str, object]) -> bool:
    reserve = batch.reserve(str(row.org))
    if reserve is None:
        orphans.note(batch, str(row.org))
    elif reserve["sequence"] < row.data["sequence"]:
        batch.change_reserve(str(row.org), {**values, "sequence": row.data["sequence"]})
    return False
