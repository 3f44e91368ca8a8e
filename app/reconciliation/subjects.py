"""Lists the subjects to compare: every reserve, wallet and open escrow of this service's organisations."""

import asyncio

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.reconciliation.facts import Subject
from app.store import reconciliation as store
from app.store.organisations import Organisation, organisations
from app.store.reconciliation import EscrowModel, Vault
from app.submission.context import Service

_PAGE = 500
"""Number of accounts read from the indexer at a time."""


async def subjects(service: Service) -> list[Subject]:
    """Return the subjects to compare, including wallets that only the indexer or only the read models know."""

    def read(conn: Connection) -> tuple[list[Organisation], list[Vault], list[EscrowModel]]:
        vaults = [one for one in store.vaults(conn) if _is_address(one.vault) and _is_address(one.tokens)]
        escrows = [one for one in store.open_escrows(conn) if _is_address(one.address) and _is_address(one.vault)]
        return organisations(conn), vaults, escrows

    orgs, shown, escrows = await service.db.read(read, in_thread=True)
    mine = {one.org for one in orgs}
    vaults = {one.vault: one for one in shown}
    for one in await _followed(service):
        if one.org in mine:
            vaults.setdefault(one.vault, one)
    return [
        *(Subject("reserve", one.org, one.org, one.reserve, one.org) for one in orgs),
        *(Subject("wallet", one.org, one.vault, one.tokens, one.vault) for one in vaults.values()),
        *(_escrow(service, one) for one in escrows),
    ]


async def _followed(service: Service) -> list[Vault]:
    """Return the vaults that the indexer follows, of all organisations."""
    found: list[Vault] = []
    last = ""
    while page := await service.indexer.followed(last, _PAGE):
        found += [Vault(one.org, one.vault, one.address) for one in page if one.vault is not None]
        last = page[-1].address
        await asyncio.sleep(0)
    return found


def _is_address(text: str) -> bool:
    """Return True if a text is a valid address. A corrupted address must not stop the comparison of other subjects.

    A vault with a corrupted address is still found through the indexer. If an escrow has a corrupted address, its
    vault's number of open escrows differs from the chain.
    """
    try:
        Pubkey.from_string(text)
    except ValueError:
        return False
    return True


def _escrow(service: Service, one: EscrowModel) -> Subject:
    tokens = str(service.addresses.escrow_tokens(Pubkey.from_string(one.address)))
    return Subject("escrow", one.org, one.address, tokens, one.vault, one.escrow_id)
