"""Measures the compute units of allowances, and of the transfer by which a delegate pays."""

import os
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.allowance_instructions import OpenAllowance
from app.chain.rules import Rules
from tests.bench.story import Story

ALLOWANCES = 8
"""Allowances measured for each figure."""
AMOUNT, SECONDS = 1_000, 60
DECIMALS = 6
_TRANSFER_CHECKED = 12


class Allowances:
    """Allowances of one vault to the merchant, each to a delegate of its own."""

    def __init__(self, story: Story, policy: Pubkey, **optional: Any) -> None:
        self.story, self.policy, self.optional = story, policy, optional
        self.vault = story.wallet(f"granting {policy}", policy)
        self.destination = story.addresses.token_account(story.merchant.pubkey())
        self.made = 0

    def grant(self) -> tuple[OpenAllowance, Keypair, int]:
        """Grant an allowance, and return it, its delegate and the units used."""
        story, payer, delegate = self.story, self.story.payer.pubkey(), Keypair()
        address = story.addresses.allowance(self.vault, self.made)
        instruction = story.instructions.grant_allowance(
            payer=payer,
            signer=story.session.pubkey(),
            operator=story.operator.pubkey(),
            policy=self.policy,
            vault=self.vault,
            destination=self.destination,
            delegate=delegate.pubkey(),
            counter=self.made,
            amount=AMOUNT,
            reference=os.urandom(16),
            expires_at=story.time + SECONDS,
            **self.optional,
        )
        self.made += 1
        units = story.runtime.units(story.payer, instruction, signers=(story.session, story.operator))
        return OpenAllowance(address, self.vault, payer, self.optional.get("budget")), delegate, units

    def pay(self, allowance: OpenAllowance, delegate: Keypair, amount: int) -> int:
        """Transfer as the delegate, and return the units used."""
        story = self.story
        data = bytes([_TRANSFER_CHECKED]) + amount.to_bytes(8, "little") + bytes([DECIMALS])
        metas = [
            AccountMeta(story.addresses.allowance_tokens(allowance.address), is_signer=False, is_writable=True),
            AccountMeta(story.mint, is_signer=False, is_writable=False),
            AccountMeta(self.destination, is_signer=False, is_writable=True),
            AccountMeta(delegate.pubkey(), is_signer=True, is_writable=False),
        ]
        return story.runtime.units(story.payer, Instruction(TOKEN_PROGRAM, data, metas), signers=(delegate,))

    def settle(self, allowance: OpenAllowance) -> int:
        """Settle an allowance as the operator, and return the units used."""
        operator = self.story.operator
        settle = self.story.instructions.settle_allowance(allowance, signer=operator.pubkey())
        return self.story.runtime.units(self.story.payer, settle, signers=(operator,))

    def most(self) -> dict[str, int]:
        """Return the most units of each step of allowances of which nothing, a part, or all is spent."""
        units: dict[str, int] = {}

        def note(name: str, used: int) -> None:
            units[name] = max(units.get(name, 0), used)

        for _ in range(ALLOWANCES):
            for spent, name in ((0, "nothing"), (AMOUNT // 2, "half"), (AMOUNT, "all")):
                allowance, delegate, used = self.grant()
                note("grant_allowance", used)
                if spent:
                    note("the delegate's TransferChecked", self.pay(allowance, delegate, spent))
                note(f"settle_allowance ({name} spent)", self.settle(allowance))
        return units


def allowance_units(story: Story, every: dict[str, Any], entries: list[bytes]) -> dict[str, int]:
    """Return the units of each step. `every` sets all eight rules, `entries` is an allowlist for them."""
    plain, _ = story.policy("allowances", Rules(allow_allowances=True))
    # At the threshold, as above it an approval would have to be made for each.
    rules = Rules(**{**every, "require_co_sign": AMOUNT, "allow_allowances": True})
    strict, allowlist = story.policy("strict allowances", rules, entries)
    units = Allowances(story, plain).most()
    guarded = Allowances(
        story, strict, allowlist=allowlist, recipient=story.addresses.recipient(story.org, story.merchant.pubkey())
    )
    named = guarded.most()
    units["grant_allowance, all eight rules, 10 entries"] = named["grant_allowance"]
    return units
