"""Finds, lists and shows transactions."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from urllib.parse import urlencode

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.addresses import parse_address
from app.chain.identity import Cluster
from app.chain.rules import CATEGORIES
from app.core.errors import NotFoundError
from app.core.identifiers import is_id
from app.core.pages import RecordPage
from app.core.settings import Settings
from app.core.transaction_types import ALLOWANCE
from app.recipients.domains import normalise
from app.store.allowances import SETTLED, AllowanceRecord, allowances_of_transactions
from app.store.read_tables import TransactionRecord
from app.store.transactions import TransactionFilter, transaction, transactions
from app.store.wallets import wallet
from app.store.x402 import IssuedPayment, issued_payments_of
from app.submission.chain_state import pending_or_missing
from app.submission.context import Service
from app.transactions.models import ListTransactions, ListWalletTransactions, Transaction, TransactionPage
from app.wallets import service as wallets
from app.wallets.funding import FUND_BATCH, row_ids

Handed = tuple[IssuedPayment | None, AllowanceRecord | None]
"""The issued payment for a resource, and the allowance that it pays from, if any."""


async def get(service: Service, principal: Principal, tx_id: str) -> Transaction:
    """Return a transaction.

    Raises ``transaction_not_found`` if there is none with this id or, for an agent, if it belongs to another wallet.
    Raises ``chain_unavailable`` while the funding batch that will add it is pending.
    """

    def read(conn: Connection) -> tuple[TransactionRecord | None, dict[str, Handed]]:
        return transaction(conn, principal.org, tx_id), _issued_payments(conn, [tx_id])

    found, handed = await service.db.read(read)
    if found is None:
        missing = NotFoundError("transaction_not_found")
        # Each wallet of a funding batch gets its row with the event, but the response already contained the row's id.
        raise await pending_or_missing(
            service, principal.org, FUND_BATCH.name, lambda one: tx_id in row_ids(one), missing
        )
    if principal.wallet_id not in (None, found.wallet_id):
        raise NotFoundError("transaction_not_found")
    return _shown(service, found, handed)


async def page(
    service: Service, principal: Principal, query: ListWalletTransactions, wallet_id: str | None
) -> TransactionPage:
    """Return one page of transactions, newest first. Agents see only the transactions of their own wallet.

    Raises ``wallet_not_found`` if ``wallet_id`` names no wallet of the organisation.
    """
    if wallet_id is not None:
        await wallets.require(service, principal.org, wallet_id)
    of_org = query if isinstance(query, ListTransactions) else ListTransactions()
    chosen = TransactionFilter(
        wallet_id=wallet_id or principal.wallet_id,
        status=query.status,
        type=query.type,
        recipient=None if of_org.recipient is None else await _stored(service, principal.org, of_org.recipient),
        start=query.from_,
        end=query.to,
        x402_host=query.x402_host,
        tag=of_org.tag,
        budget=of_org.budget_id,
        category=None if of_org.category is None else str(CATEGORIES.index(of_org.category)),
        rule=of_org.rule,
        spending=of_org.spending or None,
    )

    def read(conn: Connection) -> tuple[RecordPage[TransactionRecord], dict[str, Handed]]:
        rows = transactions(conn, principal.org, chosen, limit=query.limit, cursor=query.cursor)
        return rows, _issued_payments(conn, [row.tx_id for row in rows.data])

    found, handed = await service.db.read(read)
    return TransactionPage.showing(found, lambda row: _shown(service, row, handed))


def _issued_payments(conn: Connection, tx_ids: Collection[str]) -> dict[str, Handed]:
    """Return the issued payments of these transactions with their allowances, by transaction id."""
    payloads = issued_payments_of(conn, tx_ids)
    delegated = [one.tx_id for one in payloads if one.lane == ALLOWANCE]
    allowances = {one.tx_id: one for one in allowances_of_transactions(conn, delegated)}
    return {one.tx_id: (one, allowances.get(one.tx_id)) for one in payloads}


def _shown(service: Service, row: TransactionRecord, handed: Mapping[str, Handed]) -> Transaction:
    issued, allowance = handed.get(row.tx_id, (None, None))
    if issued is not None and issued.lane == ALLOWANCE:
        row = _as_paid(row, issued, allowance)
    return shown(service.settings, service.identity.cluster, row, issued)


def _as_paid(row: TransactionRecord, issued: IssuedPayment, allowance: AllowanceRecord | None) -> TransactionRecord:
    """Return the row of an allowance's grant with the status, signature and slot of the delegate's transfer.

    The grant lands before anyone is paid. The resource is paid once the delegate's transfer has landed.
    """
    status, signature, slot = row.status, issued.signature, issued.slot
    if status == "confirmed" and signature is None:
        if allowance is None or allowance.status != SETTLED:
            status = "pending"
        elif not allowance.spent:
            status = "failed"
        else:
            signature = next(iter(allowance.transfers or ()), None)
    return replace(row, status=status, signature=signature, slot=slot)


async def _stored(service: Service, org: str, recipient: str) -> str:
    """Return a recipient as payments store it: a wallet as its vault's address, a domain in lower case."""
    if parse_address(recipient) is not None:
        return recipient
    if is_id("wal_", recipient):
        paid = await service.db.read(lambda conn: wallet(conn, org, recipient, service.clock.seen_ms()))
        return recipient if paid is None else paid.vault
    return normalise(recipient) or recipient


def shown(
    settings: Settings, cluster: Cluster, row: TransactionRecord, issued: IssuedPayment | None = None
) -> Transaction:
    """Return a transaction as the API shows it; ``issued`` is the issued payment for a resource, if any."""
    link = partial(_explorer, settings, cluster, row.signature)
    return Transaction.of(
        row,
        recipient=row.recipient or row.recipient_address or "",
        explorer_url_1=link(settings.explorer_url_1),
        explorer_url_2=link(settings.explorer_url_2),
        x402=issued if issued is not None and issued.protocol == "x402" else None,
        paid_request=issued,
    )


def _explorer(settings: Settings, cluster: Cluster, signature: str | None, template: str) -> str | None:
    if signature is None:
        return None
    # A node's address may contain a password, so readers of transactions see only the embedded chain's address.
    port = None if settings.rpc_url else settings.localnet_port
    return template.format(signature=signature, cluster=_cluster_query(cluster, port))


@cache
def _cluster_query(cluster: Cluster, port: int | None) -> str:
    """Return the query that names the cluster to an explorer; ``port`` is the embedded chain's JSON-RPC port."""
    if cluster == "mainnet-beta" or (cluster == "localnet" and port is None):
        return ""
    if cluster == "localnet":
        return "?" + urlencode({"cluster": "custom", "customUrl": f"http://127.0.0.1:{port}"})
    return f"?cluster={cluster}"
