"""Transactions as they are read."""

from functools import cache
from typing import cast
from urllib.parse import urlencode

from app.access.keyring import Principal
from app.api.fields import Violation
from app.core.errors import NotFoundError
from app.core.identifiers import is_id
from app.core.money import format_usdc
from app.core.settings import Cluster, Settings
from app.core.timestamps import iso_ms, now_ms
from app.recipients.domains import normalise
from app.recipients.service import parse_address
from app.store.transactions import TransactionFilter, TransactionRecord, transaction, transactions
from app.store.wallets import wallet
from app.submission.context import Service
from app.transactions.models import (
    ListTransactions,
    ListWalletTransactions,
    Transaction,
    TransactionPage,
    TransactionStatus,
    TransactionType,
)
from app.wallets import service as wallets


async def get(service: Service, principal: Principal, tx_id: str) -> Transaction:
    """Return a transaction. Raises ``transaction_not_found``, for an agent also when it is another wallet's."""
    found = await service.db.read(lambda conn: transaction(conn, principal.org, tx_id))
    if found is None or principal.wallet_id not in (None, found.wallet_id):
        raise NotFoundError("transaction_not_found")
    return shown(service.settings, found)


async def page(
    service: Service, principal: Principal, query: ListWalletTransactions, wallet_id: str | None, recipient: str | None
) -> TransactionPage:
    """One page of transactions, newest first; an agent sees its own wallet's.

    Raises ``wallet_not_found`` when a wallet is named that the organisation does not have.
    """
    if wallet_id is not None:
        await wallets.require(service, principal.org, wallet_id)
    chosen = TransactionFilter(
        wallet_id=wallet_id or principal.wallet_id,
        status=query.status,
        type=query.type,
        recipient=await _remembered(service, principal.org, recipient),
        start=query.from_,
        end=query.to,
    )
    found = await service.db.read(
        lambda conn: transactions(conn, principal.org, chosen, limit=query.limit, cursor=query.cursor)
    )
    return TransactionPage(
        data=[shown(service.settings, one) for one in found.data],
        has_more=found.has_more,
        next_cursor=found.next_cursor,
    )


async def organisation_page(service: Service, principal: Principal, query: ListTransactions) -> TransactionPage:
    """Return the same over all wallets."""
    return await page(service, principal, query, query.wallet_id, query.recipient)


async def _remembered(service: Service, org: str, recipient: str | None) -> str | None:
    """Return a recipient as payments remember it: a wallet by its vault's address, a domain in lower case."""
    if recipient is None or parse_address(recipient) is not None:
        return recipient
    if is_id("wal_", recipient):
        paid = await service.db.read(lambda conn: wallet(conn, org, recipient, now_ms()))
        return recipient if paid is None else paid.vault
    return normalise(recipient) or recipient


def shown(settings: Settings, row: TransactionRecord) -> Transaction:
    """Return a transaction as it is shown."""
    return Transaction(
        tx_id=row.tx_id,
        id=row.tx_id,
        wallet_id=row.wallet_id,
        recipient=row.recipient or row.recipient_address or "",
        amount=format_usdc(row.amount),
        currency="USDC",
        status=cast(TransactionStatus, row.status),
        tx_signature=row.tx_signature,
        on_chain_slot=row.on_chain_slot,
        policy_triggered=row.policy_triggered,
        memo=row.memo,
        timestamp=iso_ms(row.timestamp),
        type=cast(TransactionType, row.type),
        policy_id=row.policy_id,
        agent_attestation_hash=row.attestation_hash,
        explorer_url_1=_explorer(settings, settings.explorer_url_1, row.tx_signature),
        explorer_url_2=_explorer(settings, settings.explorer_url_2, row.tx_signature),
        violation=None if row.violation is None else Violation.model_validate(row.violation),
    )


def _explorer(settings: Settings, template: str, signature: str | None) -> str | None:
    if signature is None:
        return None
    # A node's address may hold a password, so only the embedded chain's is shown to those who read transactions.
    port = None if settings.rpc_url else settings.localnet_port
    return template.format(signature=signature, cluster=_cluster_query(settings.cluster, port))


@cache
def _cluster_query(cluster: Cluster, port: int | None) -> str:
    """Return what tells an explorer which chain it is; ``port`` is that of the embedded chain's JSON-RPC."""
    if cluster == "mainnet-beta" or (cluster == "localnet" and port is None):
        return ""
    if cluster == "localnet":
        return "?" + urlencode({"cluster": "custom", "customUrl": f"http://127.0.0.1:{port}"})
    return f"?cluster={cluster}"
