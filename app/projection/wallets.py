"""Events about vaults that move no money."""

from typing import Any

from sqlalchemy import select, update

from app.core.identifiers import wallet_id
from app.core.transaction_types import PURPOSES
from app.projection.batch import Batch, Values, address_or_none
from app.store.approval_events import facts, request_at, shown_actor, summary
from app.store.attempts import last_blocked
from app.store.read_tables import approvals
from app.store.state_tables import wallet_details
from indexer import StoredEvent

_FROZEN_BY_EXPIRY = 2


def created(batch: Batch, row: StoredEvent) -> None:
    """Add the wallet and report it."""
    data, connection = row.data, batch.connection
    identifier = wallet_id(data["vault"])
    details = connection.execute(select(wallet_details).where(wallet_details.c.wallet_id == identifier)).one_or_none()
    moment = batch.moment(row) if details is None else details.created_at
    if batch.wallets.get(data["vault"]) is None:
        values = {
            "wallet_id": identifier,
            "org": row.org,
            "vault": data["vault"],
            "tokens": data["vault_tokens"],
            "policy": data["policy"],
            "budget": None,
            "agent_hash": data["agent_hash"],
            "session_authority": address_or_none(data["session_authority"]),
            "session_expires_at": data["session_expires_at"],
            "frozen": 0,
            "archived": False,
            "balance": 0,
            "balance_slot": 0,
            "balance_sequence": 0,
            "balance_row": 0,
            "config_sequence": data["sequence"],
            "budget_sequence": data["sequence"],
            "frozen_sequence": data["sequence"],
            "funded": False,
            "sequence": data["sequence"],
            "escrow_counter": 0,
            "allowance_counter": 0,
            "created_at": moment,
            "updated_at": moment,
            "last_transaction_at": None,
            "blocked_at": last_blocked(connection, identifier),
        }
        batch.wallets.change(data["vault"], values)
    agent_id = None if details is None else details.agent_id
    shown = {"agent_id": agent_id, "chain_address": data["vault"]}
    _report(batch, row, "wallet.created", identifier, f"Wallet of {agent_id or 'an agent'} created", shown)
    batch.adopt_orphans(row, data["vault"])


def updated(batch: Batch, row: StoredEvent) -> None:
    """Set the wallet's policy, session authority and the session's expiry, unless a later event has set them."""
    values = {
        "policy": row.data["policy"],
        "session_authority": address_or_none(row.data["session_authority"]),
        "session_expires_at": row.data["session_expires_at"],
    }
    change(batch, row, "config_sequence", values)


def budget_set(batch: Batch, row: StoredEvent) -> None:
    """Set the wallet's shared budget, and report it."""
    budget, previous = (address_or_none(row.data[name]) for name in ("budget", "previous"))
    wallet = change(batch, row, "budget_sequence", {"budget": budget})
    ids = {address: batch.budget_id(address) for address in (budget, previous) if address is not None}
    for address, known in ids.items():
        if known is None:
            batch.note_orphan(address)
    if wallet is None or None in ids.values():
        return
    identifier, now = wallet["wallet_id"], None if budget is None else ids[budget]
    what = "left its budget" if now is None else f"is in the budget {now}"
    fields = {"budget_id": now, "previous_budget_id": None if previous is None else ids[previous]}
    _report(batch, row, "wallet.budget_set", identifier, f"Wallet {identifier} {what}", fields)


def frozen(batch: Batch, row: StoredEvent) -> None:
    """Mark the wallet as frozen, manually or because its policy expired, and report it."""
    wallet = change(batch, row, "frozen_sequence", {"frozen": row.data["reason"]})
    if wallet is None:
        return
    identifier = wallet["wallet_id"]
    if row.data["reason"] == _FROZEN_BY_EXPIRY:
        policy = batch.policy_id(wallet["policy"])
        summary = f"Policy {policy} expired; wallet {identifier} is frozen"
        _report(batch, row, "policy.expired", identifier, summary, {"policy_id": policy})
    else:
        _report(batch, row, "wallet.frozen", identifier, f"Wallet {identifier} frozen", {"reason": "manual"})


def unfrozen(batch: Batch, row: StoredEvent) -> None:
    """Mark the wallet as not frozen and report it."""
    wallet = change(batch, row, "frozen_sequence", {"frozen": 0})
    if wallet is not None:
        identifier = wallet["wallet_id"]
        _report(batch, row, "wallet.unfrozen", identifier, f"Wallet {identifier} unfrozen", {})


def closed(batch: Batch, row: StoredEvent) -> None:
    """Mark the wallet as archived, which is final, and clear its budget and its session."""
    sequence = row.data["sequence"]
    left = {"budget": None, "budget_sequence": sequence}
    ended = {"session_authority": None, "session_expires_at": 0, "config_sequence": sequence}
    change(batch, row, None, {"archived": True, **left, **ended})


def payee_forgotten(batch: Batch, row: StoredEvent) -> None:
    """Report that a recipient is no longer known."""
    wallet = change(batch, row, None, {})
    if wallet is not None:
        identifier, recipient = wallet["wallet_id"], row.data["address"]
        _report(batch, row, "recipient.forgotten", identifier, f"{recipient} is forgotten", {"recipient": recipient})


def approved(batch: Batch, row: StoredEvent) -> None:
    """Add an approval. If an event that used or closed it came first, keep that state."""
    data = row.data
    values = {name: data[name] for name in ("vault", "recipient", "amount", "policy_version", "expires_at", "payer")}
    values |= {"address": data["approval"], "org": row.org, "state": "open"}
    values["purpose"] = PURPOSES[data["kind"]]
    values["terms"] = data["terms"] if values["purpose"] == "escrow" else None
    batch.put(approvals, values, keys=["address"], replace=False)
    change(batch, row, None, {})
    _report_decision(batch, row, "approved")


def approval_closed(batch: Batch, row: StoredEvent) -> None:
    """Mark an approval as closed. If this rejected a request for approval, report the decision."""
    spend_approval(batch, row, row.data["approval"], "closed")
    change(batch, row, None, {})
    _report_decision(batch, row, "rejected")


def _report_decision(batch: Batch, row: StoredEvent, decision: str) -> None:
    asked = request_at(batch.connection, row.data["approval"], batch.moment(row))
    if asked is not None and (decision == "approved" or asked.status == "rejected"):
        by = shown_actor(asked.decided_by)
        payload = facts(asked, decision=decision, decided_by=by, reason=asked.reason)
        batch.report(row, "approval.decided", summary(asked, decision), payload, wallet_id=asked.wallet_id)


def spend_approval(batch: Batch, row: StoredEvent, address: str, state: str) -> None:
    """Mark an approval as used or closed, even if the event that created it comes later."""
    mine = update(approvals).where(approvals.c.address == address)
    if batch.connection.execute(mine.values(state=state)).rowcount == 0:
        unknown = {"recipient": "", "amount": 0, "policy_version": 0, "expires_at": 0, "payer": row.fee_payer}
        values = {"address": address, "org": row.org, "vault": row.data["vault"], "state": state, **unknown}
        batch.put(approvals, values, keys=["address"], replace=False)


def change(batch: Batch, row: StoredEvent, counter: str | None, values: Values) -> Values | None:
    """Change the event's wallet and return it, or return None if it does not exist yet.

    `counter` names the column with the sequence number of the last event that set these values. With a `counter`, the
    values are set only if no later event has set them.
    """
    sequence = row.data["sequence"]
    wallet = batch.wallets.get(row.data["vault"])
    if wallet is None:
        batch.note_orphan(row.data["vault"])
        return None
    changes: Values = {
        "sequence": max(wallet["sequence"], sequence),
        "updated_at": max(wallet["updated_at"], batch.moment(row)),
    }
    if counter is None:
        changes |= values
    elif wallet[counter] < sequence:
        changes |= values | {counter: sequence}
    batch.wallets.change(row.data["vault"], changes)
    return wallet


def _report(  # noqa: PLR0917
    batch: Batch, row: StoredEvent, name: str, wallet: str, summary: str, fields: dict[str, Any]
) -> None:
    batch.report(row, name, summary, {"wallet_id": wallet, **fields}, wallet_id=wallet)
