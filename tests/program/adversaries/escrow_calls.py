"""Valid calls of the escrow instructions. Each names only the accounts that it needs."""

from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from tests.program.adversaries.stage import APPROVED, Party
from tests.program.adversaries.ways import REFERENCE, Call, slots, way
from tests.support.vm import PROGRAM_ID
from tests.support.vm_escrows import (
    OUTPUT,
    OUTPUT_HASH,
    SIGNED_ATTESTATION,
    WEBHOOK_CALLBACK,
    attested,
    creation,
    decision,
    dispute,
)
from tests.support.vm_tokens import USDC

MAKING = ("payer", "receiver", "associated_token_program", "system_program")
"""The accounts needed to create the receiver's token account."""


def _without(instruction: Instruction, name: str, *left_out: str) -> Instruction:
    accounts = [
        AccountMeta(PROGRAM_ID, is_signer=False, is_writable=False) if slot.name in left_out else meta
        for slot, meta in zip(slots(name), instruction.accounts, strict=True)
    ]
    return Instruction(instruction.program_id, instruction.data, accounts)


def _created(party: Party, receiver: Pubkey, amount: int, **options: Any) -> Call:
    counter = party.fields(party.vault)["escrow_counter"]
    instruction = creation(party, party.vault, receiver, amount, reference=REFERENCE, **options)
    return Call(instruction, {"escrow": (b"escrow", bytes(party.vault), counter.to_bytes(8, "little"))})


@way("create_escrow plain")
def _(party: Party) -> Call:
    return _created(party, party.worker.vault, USDC)


@way("create_escrow outside")
def _(party: Party) -> Call:
    return _created(party, party.merchant.owner, USDC)


@way("create_escrow co-signed")
def _(party: Party) -> Call:
    return _created(party, party.merchant.owner, APPROVED, co_signer=party.operator)


@way("create_escrow approved")
def _(party: Party) -> Call:
    approval = party.escrow_approval
    return _created(party, party.merchant.owner, APPROVED, approval=approval, payer=party.rent_payer)


def _completed(party: Party, escrow: OpenEscrow, kind: int, signer: Pubkey | None = None) -> Instruction:
    return party.build.complete_escrow(escrow, payer=party.payer, kind=kind, output_hash=OUTPUT, signer=signer)


@way("complete_escrow requester")
def _(party: Party) -> Instruction:
    return _without(_completed(party, party.locked, OUTPUT_HASH, party.session), "complete_escrow", *MAKING)


@way("complete_escrow receiver")
def _(party: Party) -> Instruction:
    by_receiver = _completed(party, party.locked, OUTPUT_HASH, party.worker.key)
    return _without(by_receiver, "complete_escrow", *(name for name in MAKING if name != "receiver"))


@way("complete_escrow newcomer")
def _(party: Party) -> Instruction:
    return _completed(party, party.newcomers, OUTPUT_HASH, party.operator)


@way("complete_escrow attested")
def _(party: Party) -> Call:
    complete = _completed(party, party.locked, SIGNED_ATTESTATION)
    proof = attested(party, party.locked, SIGNED_ATTESTATION, party.worker.key)
    needed = (name for name in MAKING if name != "receiver")
    return Call(_without(complete, "complete_escrow", *needed), before=(proof,))


@way("complete_escrow verified")
def _(party: Party) -> Call:
    complete = _completed(party, party.locked, WEBHOOK_CALLBACK)
    proof = attested(party, party.locked, WEBHOOK_CALLBACK, party.verifier)
    return Call(_without(complete, "complete_escrow", *MAKING), before=(proof,))


@way("refund_escrow due")
def _(party: Party) -> Instruction:
    return party.build.refund_escrow(party.due)


@way("refund_escrow undecided")
def _(party: Party) -> Instruction:
    return party.build.refund_escrow(party.undecided)


@way("dispute_escrow requester")
def _(party: Party) -> Instruction:
    return _without(dispute(party, party.locked), "dispute_escrow", "receiver")


@way("dispute_escrow receiver")
def _(party: Party) -> Instruction:
    return dispute(party, party.locked, party.worker.key)


@way("withdraw_dispute requester")
def _(party: Party) -> Instruction:
    withdraw = party.build.withdraw_dispute(party.argued, signer=party.session)
    return _without(withdraw, "withdraw_dispute", "receiver")


@way("withdraw_dispute receiver")
def _(party: Party) -> Instruction:
    return party.build.withdraw_dispute(party.argued_by_receiver, signer=party.worker.key)


@way("collect_escrow")
def _(party: Party) -> Instruction:
    return _without(party.build.collect_escrow(party.split, payer=party.payer), "collect_escrow", *MAKING)


@way("collect_escrow newcomer")
def _(party: Party) -> Instruction:
    return party.build.collect_escrow(party.split_newcomers, payer=party.payer)


@way("resolve_dispute release")
def _(party: Party) -> Instruction:
    return _without(decision(party, party.argued, USDC), "resolve_dispute", *MAKING)


@way("resolve_dispute refund")
def _(party: Party) -> Instruction:
    return _without(decision(party, party.argued, 0), "resolve_dispute", *MAKING, "receiver_tokens")


@way("resolve_dispute split")
def _(party: Party) -> Instruction:
    return decision(party, party.newcomers_argued, 1)
