"""Accounts of the program that the service has seen: that a node does not show them proves nothing."""

from typing import Any

from solders.pubkey import Pubkey

from app.core.errors import UnavailableError
from app.submission.context import Service
from idl.codec import CodecError

_STALE = "The chain's node does not show what the service has seen there."


def outdated_error() -> UnavailableError:
    """Return the error for an account that a node shows as it no longer is, or not at all: it lags, or lies."""
    return UnavailableError("chain_unavailable", _STALE)


async def state_of(service: Service, address: str, name: str, *, sequence: int) -> dict[str, Any] | None:
    """Return an account of the program as of its event `sequence` or later; None if the node shows no such."""
    account = await service.chain.account(Pubkey.from_string(address))
    try:
        state = None if account is None else service.codec.decode_account(account.data)
    except CodecError:
        state = None
    return state.data if state is not None and state.name == name and state.data["sequence"] >= sequence else None


async def seen_account(service: Service, address: str | Pubkey) -> dict[str, Any]:
    """Return the state of an account that the service has seen. Raises ``chain_unavailable`` if the node has none."""
    account = await service.chain.account(Pubkey.from_string(address) if isinstance(address, str) else address)
    if account is None:
        raise outdated_error()
    return account.decode(service.codec).data
