"""On-chain state compared with stored state: pending creations, gaps, stale nodes, owners of addresses."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from app.core.errors import CATALOGUE, ApiError, UnavailableError
from app.store.attempts import Attempt, pending_changes
from app.store.organisations import reserve
from app.store.wallets import orgs_of_vaults
from app.submission.context import Service
from idl.codec import CodecError

_Open = TypeVar("_Open", OpenEscrow, OpenAllowance)

_GAP = "The service cannot confirm yet that it has read all events of this object from the chain. Retry shortly."
_PAUSES = (0.1, 0.2, 0.4, 0.8)
"""Seconds between checks for events that may still be arriving, possibly out of order."""
_STALE = "The Solana node is stale: it lacks on-chain state that the service has already seen. Retry shortly."


def stale_node_error() -> UnavailableError:
    """Return the error for a known account that a node lacks or shows in an old state.

    Such a node is stale, or dishonest.
    """
    return UnavailableError("chain_unavailable", _STALE)


async def require_no_gap(service: Service, account: str) -> None:
    """Bring all the program's events on the chain into the read models.

    ``account`` is a vault or organisation. Raises ``chain_unavailable`` if the account still has a gap after several
    checks, or if the node returns errors, because the account's read model may be outdated.
    """
    for pause in (*_PAUSES, None):
        if await service.indexer.holds_all(account, 0):
            await service.projector.catch_up()
            return
        if pause is not None:
            await asyncio.sleep(pause)
    raise UnavailableError("chain_unavailable", _GAP, headers={"Retry-After": "1"})


async def account_state(service: Service, address: str, name: str, *, sequence: int) -> dict[str, Any] | None:
    """Return the data of a program account, or None if the node shows no such account or an older state of it.

    ``name`` is the account's type. A state is older if it counts fewer than ``sequence`` events.
    """
    account = await service.chain.account(Pubkey.from_string(address))
    try:
        state = None if account is None else service.codec.decode_account(account.data)
    except CodecError:
        state = None
    return state.data if state is not None and state.name == name and state.data["sequence"] >= sequence else None


async def unverified_recipients(service: Service, addresses: Iterable[Pubkey]) -> dict[Pubkey, str]:
    """Return a warning for each unverified recipient: off the curve, without an account and without a USDC account.

    Reads only addresses off the curve from the chain. Raises ``chain_unavailable`` if the node lacks a vault that the
    service has already seen.
    """
    doubtful = [one for one in addresses if not one.is_on_curve()]
    wanted = [one for owner in doubtful for one in (owner, service.addresses.token_account(owner))]
    found = await service.chain.accounts(wanted)
    missing = [owner for owner, *pair in zip(doubtful, found[::2], found[1::2], strict=True) if pair == [None, None]]
    known = await service.db.read(lambda conn: orgs_of_vaults(conn, [*map(str, missing)])) if missing else {}
    if known:
        raise stale_node_error()
    return {owner: f"{owner}: {CATALOGUE['recipient_unverified'].meaning}" for owner in missing}


async def current_account(service: Service, address: str, name: str, *, sequence: int) -> dict[str, Any]:
    """Like `account_state`, but raise ``chain_unavailable`` instead of returning None.

    The program would refuse a change that contains a number from an older state.
    """
    state = await account_state(service, address, name, sequence=sequence)
    if state is None:
        raise stale_node_error()
    return state


async def known_account(service: Service, address: str | Pubkey) -> dict[str, Any]:
    """Return the state of an account known to exist. Raises ``chain_unavailable`` if the node lacks it."""
    account = await service.chain.account(Pubkey.from_string(address) if isinstance(address, str) else address)
    if account is None:
        raise stale_node_error()
    return account.decode(service.codec).data


async def org_account(service: Service, org: str) -> dict[str, Any]:
    """Return the current state of an organisation's account. Raises ``chain_unavailable`` if the node is stale."""
    known = await service.db.read(lambda conn: reserve(conn, org))
    return await current_account(service, org, "Org", sequence=0 if known is None else known.sequence)


async def authority_sequence(service: Service, org: str) -> int:
    """Return the organisation's `authority_sequence`.

    Signatures that the authority makes for this sequence are valid until the sequence advances. Raises
    ``chain_unavailable`` if the node is stale.
    """
    sequence: int = (await org_account(service, org))["authority_sequence"]
    return sequence


async def pending_or_missing(
    service: Service, org: str, kind: str, where: Callable[[Attempt], bool], otherwise: ApiError
) -> ApiError:
    """Return ``chain_unavailable`` while a creation of type ``kind`` is pending, else the error ``otherwise``.

    ``where`` selects the creation. A creation that was rolled back is pending again. A client that got a 404 for such
    an object might create it a second time.
    """
    for attempt in await service.db.read(lambda conn: pending_changes(conn, org, {kind})):
        if where(attempt):
            return UnavailableError(
                "chain_unavailable",
                "The creation of this object was sent to the chain but is not confirmed yet. Retry shortly.",
                fields={"tx_id": attempt.tx_id},
            )
    return otherwise


async def with_budget(service: Service, charged: _Open) -> _Open:
    """Return the escrow or allowance with the budgets that its own account names.

    The vault may have another budget by now. If the account names no budget or is gone, ``charged`` is returned
    unchanged. If the account is gone, the escrow or allowance was settled, and the program will refuse the instruction
    for that reason.
    """
    account = await service.chain.account(charged.address)
    # After the settlement, anyone can send lamports to the address and create an empty account there.
    if account is None or not account.data:
        return charged
    fields = account.decode(service.codec).data
    levels = fields.get("charged", fields)
    budgets = [level["budget"] for level in levels["levels"][: levels["level_count"]]]
    return replace(charged, **dict(zip(("budget", "budget_parent"), budgets, strict=False)))
