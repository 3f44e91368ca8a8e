"""The deposit address of an organisation, and a check that it is the organisation's account for the service's mint."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from solders.pubkey import Pubkey
from solders.token.state import TokenAccount, TokenAccountState

from app.access.keyring import Principal
from app.chain.addresses import TOKEN_PROGRAM
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.identity import USDC_MINTS
from app.chain.records import RawAccount
from app.organisations.models import Organization
from app.organisations.service import show
from app.submission.context import Service

#: Seconds to wait for the chain.
_PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class DepositAddress:
    """An organisation with its reserve, the result of checking the reserve on the chain, and the issuer of its mint.

    `state` is `checked` if the reserve can take deposits, `wrong` if not, and `unknown` while the chain does not
    answer. `issuer` is `local` on a cluster without Circle's USDC.
    """

    organization: Organization
    state: Literal["checked", "wrong", "unknown"]
    issuer: Literal["circle", "other", "local"]


async def deposit_address(service: Service, principal: Principal) -> DepositAddress:
    """Return the organisation's deposit address, checked on the chain. Raises the errors of ``show``."""
    shown = await show(service, principal)
    known = USDC_MINTS.get(service.identity.cluster)
    issuer: Literal["circle", "other", "local"] = "local" if known is None else "other"
    if known == shown.mint:
        issuer = "circle"
    if str(service.addresses.token_account(Pubkey.from_string(shown.organization_address))) != shown.reserve_address:
        return DepositAddress(shown, "wrong", issuer)
    try:
        async with asyncio.timeout(_PATIENCE):
            account = await service.chain.account(Pubkey.from_string(shown.reserve_address))
    except (ChainUnavailable, RpcError, TimeoutError):
        return DepositAddress(shown, "unknown", issuer)
    return DepositAddress(shown, "checked" if _takes(service, shown, account) else "wrong", issuer)


def _takes(service: Service, shown: Organization, account: RawAccount | None) -> bool:
    """Return True if the account is the organisation's, holds the service's mint and is not frozen."""
    if account is None or account.owner != TOKEN_PROGRAM:
        return False
    try:
        tokens = TokenAccount.from_bytes(account.data)
    except ValueError:
        return False
    return bool(
        tokens.mint == service.addresses.mint
        and str(tokens.mint) == shown.mint
        and str(tokens.owner) == shown.organization_address
        and tokens.state == TokenAccountState.Initialized
    )
