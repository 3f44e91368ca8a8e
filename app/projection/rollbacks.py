"""Removes from the read models the effects of transactions that the chain rolled back."""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, case, delete, insert, select, true, update

from app.core.identifiers import wallet_id
from app.core.transaction_types import ROW_OF
from app.database.columns import upsert
from app.projection.batch import vaults_in
from app.store.allowances import reset_allowances
from app.store.allowances import table as allowances
from app.store.attempts import SHARED_COLUMNS
from app.store.attempts import table as attempts
from app.store.escrows import reset_escrows
from app.store.feed import table as feed
from app.store.organisations import reserves
from app.store.organisations import table as organisations
from app.store.read_tables import (
    approvals,
    budgets,
    escrows,
    policies,
    policy_versions,
    projection,
    recipients,
    transactions,
    wallets,
)
from app.store.spending import count, label, recount
from app.store.spending import table as spending
from indexer import StoredEvent

ROLLED_BACK = "TransactionReverted"
"""Name of the rows that report a transaction as rolled back, or as stored again because its events were missing.

`events` in their data has an entry for each deleted row of the transaction: its name, organisation and addresses.
"""
CURSOR = "org:"
_ROLLBACKS = "reverts"
"""Name of the position of the last applied row that reported a rolled-back transaction."""
_READ_MODELS = (approvals, budgets, policies, recipients, reserves, spending, transactions, wallets)
_OF_VAULTS = frozenset(
    {
        *("PaymentExecuted", "PaymentApproved", "ApprovalClosed", "EscrowCreated", "EscrowDisputed", "EscrowSettled"),
        *("AllowanceGranted", "AllowanceSettled", "AllowanceRead"),
        *("WalletFrozen", "WalletUnfrozen", "WalletUpdated", "WalletClosed", "WalletBudgetSet"),
    }
)
"""Events that change only their vaults, with the vaults' transactions, approvals, escrows and allowances."""


def changed_orgs(reports: Sequence[StoredEvent]) -> set[str]:
    """Return the organisations that rolled-back transactions had changed."""
    return {event["org"] for report in reports for event in report.data["events"]}


def changed_vaults(reports: Sequence[StoredEvent]) -> set[str] | None:
    """Return the vaults changed by rolled-back transactions, or None if they also changed other objects."""
    events = [event for report in reports for event in report.data["events"]]
    if not all(event["name"] in _OF_VAULTS for event in events):
        return None
    return {vault for event in events for vault in vaults_in(event)}


def last_rollback(connection: Connection) -> int:
    """Return the id of the last applied row that reported a rolled-back transaction, or 0 if there is none."""
    return connection.scalar(select(projection.c.position).where(projection.c.name == _ROLLBACKS)) or 0


def undo(connection: Connection, row: StoredEvent) -> bool:
    """Remove a rolled-back transaction from the feed and, if its attempt is confirmed, make the attempt pending.

    Return False if this was already done.
    """
    if row.id <= last_rollback(connection):
        return False
    upsert(connection, projection, {"name": _ROLLBACKS, "position": row.id}, keys=["name"])
    signature = row.signature
    connection.execute(delete(feed).where(feed.c.signature == signature))
    again = update(attempts).where(attempts.c.signature == signature, attempts.c.status == "confirmed")
    connection.execute(again.values(status="pending", slot=None, ended_at=None))
    return True


def reset(connection: Connection, org: str | None = None) -> None:
    """Reduce the read models to the data of the service's own attempts, and go back to the first row.

    With `org`, reduce only this organisation's read models: no event of one organisation changes another's.
    """
    orgs = connection.scalars(select(organisations.c.org)).all() if org is None else [org]
    # Store the labels first, because they come from read models that are deleted next.
    label(connection, "org", orgs)
    mine = true() if org is None else policies.c.org == org
    versions = policy_versions.c.address.in_(select(policies.c.address).where(mine))
    connection.execute(delete(policy_versions).where(true() if org is None else versions))
    for table in _READ_MODELS:
        connection.execute(delete(table).where(true() if org is None else table.c.org == org))
    reset_escrows(connection, true() if org is None else escrows.c.org == org)
    reset_allowances(connection, true() if org is None else allowances.c.org == org)
    again = projection.c.name != _ROLLBACKS if org is None else projection.c.name == CURSOR + org
    connection.execute(delete(projection).where(again))
    _keep_attempts(connection, true() if org is None else attempts.c.org == org)
    recount(connection, orgs)


def forget(connection: Connection, reports: Sequence[StoredEvent], vaults: Collection[str]) -> None:
    """Undo the reported transactions, and reduce the rows of these vaults to the data of the service's own attempts."""
    for report in reports:
        undo(connection, report)
    for table in (approvals, wallets):
        connection.execute(delete(table).where(table.c.vault.in_(vaults)))
    ids = [wallet_id(vault) for vault in vaults]
    count(connection, "wallet_id", ids, sign=-1)
    connection.execute(delete(transactions).where(transactions.c.wallet_id.in_(ids)))
    reset_escrows(connection, escrows.c.vault.in_(vaults))
    reset_allowances(connection, allowances.c.vault.in_(vaults))
    _keep_attempts(connection, attempts.c.wallet_id.in_(ids))
    count(connection, "wallet_id", ids)


def _keep_attempts(connection: Connection, mine: ColumnElement[bool]) -> None:
    columns = {name: attempts.c[name] for name in SHARED_COLUMNS} | {"type": case(ROW_OF, value=attempts.c.type)}
    kept = select(*columns.values(), attempts.c.created_at).where(
        attempts.c.type.in_(ROW_OF), attempts.c.wallet_id.is_not(None), mine
    )
    connection.execute(insert(transactions).from_select([*SHARED_COLUMNS, "timestamp"], kept))
