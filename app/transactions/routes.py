"""Transactions: payments, fundings, withdrawals and escrows of wallets, including refused ones."""

from app.access.auth import READERS_AND_AGENT
from app.api.operation import Call, operation
from app.transactions import service as transactions
from app.transactions.models import ListTransactions, ListWalletTransactions, Transaction, TransactionPage


@operation("GET /v1/transactions/{tx_id}", roles=READERS_AND_AGENT, errors=("transaction_not_found",))
async def get_transaction(call: Call) -> Transaction:
    """Get a transaction."""
    return await transactions.get(call.service, call.principal, call.path("tx_id"))


@operation("GET /v1/transactions", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def list_transactions(call: Call, query: ListTransactions) -> TransactionPage:
    """List the organisation's transactions, newest first.

    An agent sees only the transactions of its own wallet.
    """
    return await transactions.page(call.service, call.principal, query, query.wallet_id)


@operation(
    "GET /v1/wallets/{wallet_id}/transactions",
    tag="transactions",
    roles=READERS_AND_AGENT,
    errors=("wallet_not_found",),
)
async def list_wallet_transactions(call: Call, query: ListWalletTransactions) -> TransactionPage:
    """List a wallet's transactions, newest first."""
    return await transactions.page(call.service, call.principal, query, call.path("wallet_id"))
