"""Valid calls of the instructions of allowances."""

from typing import Any

from solders.instruction import Instruction

from tests.program.adversaries.stage import APPROVED, Party
from tests.program.adversaries.ways import REFERENCE, Call, Seeds, way
from tests.support.vm_allowances import granting, settling
from tests.support.vm_tokens import USDC

_ENDS_AT = slice(32, 40)
"""Where a grant's data has its end: after the discriminator, the amount and the reference."""


def _granted(party: Party, amount: int, **options: Any) -> Call:
    counter = party.fields(party.vault)["allowance_counter"]
    instruction = granting(party, party.vault, party.merchant, party.delegate, amount, reference=REFERENCE, **options)
    seeds: dict[str, Seeds] = {"allowance": (b"allowance", bytes(party.vault), counter.to_bytes(8, "little"))}
    return Call(instruction, seeds, ends_at=_ENDS_AT)


@way("grant_allowance session")
def _(party: Party) -> Call:
    return _granted(party, USDC)


@way("grant_allowance operator")
def _(party: Party) -> Call:
    return _granted(party, USDC, signer=party.operator)


@way("grant_allowance approved")
def _(party: Party) -> Call:
    return _granted(party, APPROVED, approval=party.allowance_approval, payer=party.rent_payer)


@way("settle_allowance operator")
def _(party: Party) -> Instruction:
    return settling(party, party.outstanding)


@way("settle_allowance session")
def _(party: Party) -> Instruction:
    return settling(party, party.outstanding, signer=party.session)


@way("settle_allowance authority")
def _(party: Party) -> Instruction:
    return settling(party, party.outstanding, signer=party.authority)


@way("settle_allowance due")
def _(party: Party) -> Instruction:
    return settling(party, party.overdue, signer=None)


@way("settle_allowance outdated")
def _(party: Party) -> Instruction:
    policy = party.fields(party.budgetless)["policy"]
    return settling(party, party.outdated, signer=None, policy=policy)
