"""Finds the budget that an escrow or allowance was charged to, without which the program does not settle it."""

from dataclasses import replace
from typing import TypeVar

from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from app.submission.context import Service

_Open = TypeVar("_Open", OpenEscrow, OpenAllowance)


async def with_budget(service: Service, charged: _Open) -> _Open:
    """Return the escrow or allowance with its budget, which only its own account names: its vault may be in another.

    One whose account is gone has been settled; the program says so.
    """
    account = await service.chain.account(charged.address)
    # Anybody may send lamports to the address of a settled one.
    if account is None or not account.data:
        return charged
    budget: Pubkey = account.decode(service.codec).data["charged"]["budget"]
    return charged if budget == Pubkey.default() else replace(charged, budget=budget)
