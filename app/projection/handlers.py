"""Maps each kind of row to the function that applies it."""

from collections.abc import Callable

from app.projection import allowances, budgets, escrows, organisations, policies, transfers, wallets
from app.projection.batch import Batch
from indexer import StoredEvent

Handler = Callable[[Batch, StoredEvent], None]
"""Function that applies a row. Rows may come in any order and more than once."""


def deposited(batch: Batch, row: StoredEvent) -> None:
    """Apply a deposit into the reserve or into a vault. A deposit into a vault sets the balance and is not reported."""
    apply = organisations.deposited if row.data["vault"] is None else transfers.observed
    apply(batch, row)


HANDLERS: dict[str, Handler] = {
    "OrgInitialized": organisations.initialized,
    "OrgUpdated": organisations.updated,
    "AuthorityAccepted": organisations.authority_accepted,
    "ReserveWithdrawn": organisations.reserve_withdrawn,
    "RecipientRegistered": organisations.recipient_registered,
    "PolicyCreated": policies.created,
    "PolicyUpdated": policies.updated,
    "PolicyClosed": policies.closed,
    "BudgetCreated": budgets.created,
    "BudgetUpdated": budgets.updated,
    "BudgetClosed": budgets.closed,
    "BudgetFrozen": budgets.frozen,
    "BudgetUnfrozen": budgets.unfrozen,
    "WalletBudgetSet": wallets.budget_set,
    "WalletCreated": wallets.created,
    "WalletUpdated": wallets.updated,
    "WalletFrozen": wallets.frozen,
    "WalletUnfrozen": wallets.unfrozen,
    "WalletClosed": wallets.closed,
    "PayeeForgotten": wallets.payee_forgotten,
    "PaymentApproved": wallets.approved,
    "ApprovalClosed": wallets.approval_closed,
    "PaymentExecuted": transfers.paid,
    "WalletFunded": transfers.funded,
    "WalletWithdrawn": transfers.withdrawn,
    "EscrowCreated": escrows.created,
    "EscrowDisputed": escrows.disputed,
    "DisputeWithdrawn": escrows.dispute_withdrawn,
    "EscrowSettled": escrows.settled,
    "EscrowCollected": escrows.collected,
    "AllowanceGranted": allowances.granted,
    "AllowanceSettled": allowances.settled,
    "AllowanceRead": allowances.read,
    "Deposit": deposited,
    "BalanceObserved": transfers.observed,
}
"""Handlers by the name of the row. `rollbacks` applies rows named `TransactionReverted`.

Other rows, such as `AllowlistWritten`, change no read model.
"""
