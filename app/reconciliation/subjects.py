"""Lists what is compared: every reserve, every wallet and every open escrow of this service's organisations."""

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.core.identifiers import wallet_id
from app.reconciliation.facts import Subject
from app.store import reconciliation as store
from app.store.organisations import Organisation, organisations
from app.store.reconciliation import EscrowModel, Vault
from app.submission.context import Service

_PAGE = 500
"""Accounts that are read from the indexer at once."""


async def subjects(service: Service) -> list[Subject]:
    """Return what is to be compared, also wallets that only the indexer or only the read models know."""

    def read(conn: Connection) -> tuple[list[Organisation], list[Vault], list[EscrowModel]]:
        return organisations(conn), store.vaults(conn), store.open_escrows(conn)

    orgs, shown, escrows = await service.db.read(read, in_thread=True)
    mine = {one.org for one in orgs}
    vaults = {one.vault: one for one in shown if _is_address(one.vault) and _is_address(one.tokens)}
    for one in await _followed(service):
        if one.org in mine:
            vaults.setdefault(one.vault, one)
    return [
        *(Subject("reserve", one.org, one.org, one.reserve, one.org) for one in orgs),
        *(_wallet(one) for one in vaults.values()),
        *(_escrow(service, one) for one in escrows if _is_address(one.address) and _is_address(one.vault)),
    ]


async def _followed(service: Service) -> list[Vault]:
    """Return the vaults that the indexer follows, of all organisations."""
    found: list[Vault] = []
    last = ""
    while page := await service.indexer.followed(last, _PAGE):
        found += [Vault(one.org, one.vault, one.address) for one in page if one.vault is not None]
        last = page[-1].address
    return found


def _is_address(text: str) -> bool:
    """Return whether a node understands it; a spoilt one must not keep the rest from being compared.

    The vault that it hides is still found through the indexer, the escrow by the vault's count.
    """
    try:
        Pubkey.from_string(text)
    except ValueError:
        return False
    return True


def _wallet(one: Vault) -> Subject:
    return Subject("wallet", one.org, one.vault, one.tokens, one.vault, wallet_id(one.vault))


def _escrow(service: Service, one: EscrowModel) -> Subject:
    tokens = str(service.addresses.escrow_tokens(Pubkey.from_string(one.address)))
    return Subject("escrow", one.org, one.address, tokens, one.vault, one.wallet_id, one.escrow_id)
