"""Finds the budget that an escrow was charged to, without which the program does not settle it."""

from dataclasses import replace

from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from app.submission.context import Service


async def with_budget(service: Service, escrow: OpenEscrow) -> OpenEscrow:
    """Return the escrow with its budget, which only its own account names: its vault may be in another one now.

    One whose account is gone has been settled; the program says so.
    """
    account = await service.chain.account(escrow.address)
    # Anybody may send lamports to the address of a settled one.
    if account is None or not account.data:
        return escrow
    budget: Pubkey = account.decode(service.codec).data["charged"]["budget"]
    return escrow if budget == Pubkey.default() else replace(escrow, budget=budget)
