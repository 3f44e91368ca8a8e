"""Measures the compute units of the escrow instructions between two vaults whose token accounts exist.

Each figure is the maximum of several escrows. The ed25519 program's work does not count as compute units.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM
from app.chain.escrow_instructions import PROOF_KINDS, OpenEscrow, attestation
from app.chain.rules import Rules
from tests.bench.story import GENESIS_HASH, Story

ESCROWS = 8
"""Escrows measured for each figure."""
AMOUNT, TIMEOUT = 1_000, 30 * 86_400
TASK, OUTPUT = bytes(32), bytes(32)
ALL_KINDS = 0b111


class Escrows:
    """Escrows from one vault to another."""

    def __init__(
        self, story: Story, policy: Pubkey, receiver: Pubkey, *, co_sign: bool = False, **optional: Any
    ) -> None:
        self.story, self.policy, self.receiver, self.optional = story, policy, receiver, optional
        self.vault = story.wallet(f"from {policy}", policy)
        self.signers: tuple[Keypair, ...] = (story.session,)
        if co_sign:
            optional["co_signer"] = story.operator.pubkey()
            self.signers = (story.session, story.operator)
        self.made = 0

    def create(self, *, lamports_ahead: int = 0) -> tuple[OpenEscrow, int]:
        """Create an escrow, and return it and the units used. `lamports_ahead` are sent to its addresses first."""
        story, payer = self.story, self.story.payer.pubkey()
        if lamports_ahead:
            address = story.addresses.escrow(self.vault, self.made)
            for one in (address, story.addresses.escrow_tokens(address)):
                story.runtime.account(one, SYSTEM_PROGRAM, b"", lamports=lamports_ahead)
        instruction = story.instructions.create_escrow(
            payer=payer,
            signer=story.session.pubkey(),
            policy=self.policy,
            vault=self.vault,
            receiver=self.receiver,
            counter=self.made,
            amount=AMOUNT,
            reference=os.urandom(16),
            task_hash=TASK,
            proof_kinds=ALL_KINDS,
            timeout=TIMEOUT,
            **self.optional,
        )
        escrow = OpenEscrow(story.addresses.escrow(self.vault, self.made), self.vault, self.receiver, payer)
        self.made += 1
        return escrow, story.runtime.units(story.payer, instruction, signers=self.signers)

    def most(self, make: Callable[[OpenEscrow], list[Instruction]], *signers: Keypair, disputed: bool = False) -> int:
        """Return the most units that these instructions use, each time on another escrow."""
        units = []
        for _ in range(ESCROWS):
            escrow, _ = self.create()
            if disputed:
                self.story.runtime.units(self.story.payer, self.dispute(escrow), signers=(self.story.operator,))
            units.append(self.story.runtime.units(self.story.payer, *make(escrow), signers=signers))
        return max(units)

    def dispute(self, escrow: OpenEscrow) -> Instruction:
        """Return a dispute by the operator."""
        operator = self.story.operator.pubkey()
        return self.story.instructions.dispute_escrow(
            escrow, signer=operator, reason_hash=bytes(32), evidence_hash=bytes(32)
        )

    def complete(self, escrow: OpenEscrow, kind: str) -> list[Instruction]:
        """Return a completion: by the operator, or by the receiver's or verifier's signature."""
        story, code = self.story, PROOF_KINDS.index(kind)
        key = {"signed_attestation": story.session, "webhook_callback": story.operator}.get(kind)
        complete = story.instructions.complete_escrow(
            escrow,
            payer=story.payer.pubkey(),
            kind=code,
            output_hash=OUTPUT,
            signer=None if key else story.operator.pubkey(),
        )
        if key is None:
            return [complete]
        message = story.instructions.attested_message(GENESIS_HASH, escrow.address, code, TASK, OUTPUT)
        return [attestation(key.pubkey(), bytes(key.sign_message(message)), message), complete]

    def resolve(self, escrow: OpenEscrow, released: int) -> list[Instruction]:
        """Return the decision of the arbiter, which is the operator."""
        payer, arbiter = self.story.payer.pubkey(), self.story.operator.pubkey()
        return [self.story.instructions.resolve_dispute(escrow, payer=payer, arbiter=arbiter, released=released)]


def escrow_units(story: Story, every: dict[str, Any], entries: list[bytes]) -> dict[str, int]:
    """Return the units of each instruction. `every` sets all eight rules, `entries` is an allowlist for them."""
    plain, _ = story.policy("escrows", Rules())
    receiver = story.wallet("receiver", plain)
    register = story.instructions.register_recipient(
        payer=story.payer.pubkey(), signer=story.operator.pubkey(), address=receiver, category=1, domain=None
    )
    story.runtime.units(story.payer, register, signers=(story.operator,))
    strict, allowlist = story.policy("strict escrows", Rules(**every), [bytes(receiver), *entries[1:]])
    recipient = story.addresses.recipient(story.org, receiver)
    escrows = Escrows(story, plain, receiver)
    guarded = Escrows(story, strict, receiver, co_sign=True, allowlist=allowlist, recipient=recipient)
    operator = story.operator
    units = {
        "create_escrow, no rule": max(escrows.create()[1] for _ in range(ESCROWS)),
        "create_escrow, all eight rules, 10 entries": max(guarded.create()[1] for _ in range(ESCROWS)),
        "create_escrow, the same, lamports sent ahead": max(
            guarded.create(lamports_ahead=1)[1] for _ in range(ESCROWS)
        ),
        "complete_escrow (output_hash)": escrows.most(partial(escrows.complete, kind="output_hash"), operator),
    }
    for kind in PROOF_KINDS[1:]:
        units[f"complete_escrow ({kind})"] = escrows.most(partial(escrows.complete, kind=kind))
    units["dispute_escrow"] = escrows.most(lambda one: [escrows.dispute(one)], operator)
    for name, released in (("release", AMOUNT), ("refund", 0), ("split", AMOUNT // 2)):
        units[f"resolve_dispute ({name})"] = escrows.most(
            partial(escrows.resolve, released=released), operator, disputed=True
        )
    due = [escrows.create()[0] for _ in range(ESCROWS)]
    story.advance(TIMEOUT)
    refunds = [story.instructions.refund_escrow(escrow) for escrow in due]
    units["refund_escrow"] = max(story.runtime.units(story.payer, refund) for refund in refunds)
    return units
