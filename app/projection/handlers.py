"""Which function applies which row."""

from collections.abc import Callable

from app.projection import escrows, organisations, policies, transfers, wallets
from app.projection.batch import Batch
from app.projection.rows import ChainRow

Handler = Callable[[Batch, ChainRow], bool]
"""Applies a row, once or again, in any order; returns whether the organisation's rows have to be applied again."""


def deposited(batch: Batch, row: ChainRow) -> bool:
    """Apply a deposit: into the reserve, or into a vault, of which only the balance shows."""
    if row.data["vault"] is None:
        return organisations.deposited(batch, row)
    return transfers.observed(batch, row)


HANDLERS: dict[str, Handler] = {
    "OrgInitialized": organisations.initialized,
    "OrgUpdated": organisations.updated,
    "AuthorityAccepted": organisations.authority_accepted,
    "ReserveWithdrawn": organisations.reserve_withdrawn,
    "RecipientRegistered": organisations.recipient_registered,
    "PolicyCreated": policies.created,
    "PolicyUpdated": policies.updated,
    "PolicyClosed": policies.closed,
    "WalletCreated": wallets.created,
    "WalletUpdated": wallets.updated,
    "WalletFrozen": wallets.frozen,
    "WalletUnfrozen": wallets.unfrozen,
    "WalletClosed": wallets.closed,
    "PaymentApproved": wallets.approved,
    "ApprovalClosed": wallets.approval_closed,
    "PaymentExecuted": transfers.paid,
    "WalletFunded": transfers.funded,
    "WalletWithdrawn": transfers.withdrawn,
    "EscrowCreated": escrows.created,
    "EscrowDisputed": escrows.disputed,
    "EscrowSettled": escrows.settled,
    "Deposit": deposited,
    "BalanceObserved": transfers.observed,
}
"""By the name of the row; one of another name, such as `AllowlistWritten`, changes no read model."""
