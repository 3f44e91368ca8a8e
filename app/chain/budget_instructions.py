"""Builds the instructions of budgets."""

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder
from app.chain.rules import BudgetLimits


class BudgetInstructions(Builder):
    """Builds the instructions that create, change, freeze and close budgets and put vaults into them."""

    def create_budget(
        self,
        *,
        payer: Pubkey,
        authority: Pubkey,
        key: bytes,
        limits: BudgetLimits,
        expected_sequence: int,
        parent: Pubkey | None = None,
        parent_version: int | None = None,
    ) -> Instruction:
        """Create a budget without vaults; `key` is its 16-byte name.

        `expected_sequence` is the organisation's `authority_sequence`. The budget belongs to `parent` permanently. The
        parent must be at `parent_version`.
        """
        return self._build(
            "create_budget",
            {
                "key": key,
                "limits": limits.to_args(),
                "expected_sequence": expected_sequence,
                "parent_version": parent_version,
            },
            payer=payer,
            authority=authority,
            budget=self._addresses.budget(self.org, key),
            parent=parent,
        )

    def update_budget(
        self, *, authority: Pubkey, budget: Pubkey, expected_version: int, limits: BudgetLimits
    ) -> Instruction:
        """Replace the limits of a budget that is still at `expected_version`; the recorded spending still counts."""
        return self._build(
            "update_budget",
            {"expected_version": expected_version, "limits": limits.to_args()},
            authority=authority,
            budget=budget,
        )

    def close_budget(
        self,
        *,
        authority: Pubkey,
        budget: Pubkey,
        rent_receiver: Pubkey,
        expected_version: int,
        parent: Pubkey | None = None,
    ) -> Instruction:
        """Close a budget that is still at `expected_version` and has neither vaults nor sub-budgets.

        Its rent goes to `rent_receiver`, which paid it. Pass its `parent` if it has one.
        """
        return self._build(
            "close_budget",
            {"expected_version": expected_version},
            authority=authority,
            budget=budget,
            parent=parent,
            rent_receiver=rent_receiver,
        )

    def freeze_budget(self, *, signer: Pubkey, budget: Pubkey) -> Instruction:
        """Stop all spending from the vaults of a budget and of its sub-budgets. The operator or the authority signs."""
        return self._build("freeze_budget", {}, signer=signer, budget=budget)

    def unfreeze_budget(self, *, authority: Pubkey, budget: Pubkey, expected_sequence: int) -> Instruction:
        """Lift a freeze; `expected_sequence` is the budget's `frozen_sequence`."""
        args = {"expected_sequence": expected_sequence}
        return self._build("unfreeze_budget", args, signer=authority, budget=budget)

    def set_wallet_budget(
        self,
        *,
        signer: Pubkey,
        vault: Pubkey,
        expected_attachments: int,
        budget: Pubkey | None = None,
        budget_parent: Pubkey | None = None,
        new_budget: Pubkey | None = None,
        new_parent: Pubkey | None = None,
        budget_version: int | None = None,
        parent_version: int | None = None,
        authority: Pubkey | None = None,
    ) -> Instruction:
        """Move the vault from `budget` to `new_budget`. For both, `None` means no budget.

        `expected_attachments` is the vault's current `attachments`. `budget_version` and `parent_version` are the
        versions of `new_budget` and of its parent, `new_parent`. `budget_parent` is the parent of `budget`. A move
        between a budget and its own parent takes two instructions.

        If the vault has a budget, `signer` is the authority. Otherwise, `signer` is the operator. If the organisation
        has set `authority_attaches`, the `authority` must then also sign.
        """
        return self._build(
            "set_wallet_budget",
            {
                "expected_attachments": expected_attachments,
                "budget_version": budget_version,
                "parent_version": parent_version,
            },
            signer=signer,
            authority=authority,
            vault=vault,
            budget=budget,
            budget_parent=budget_parent,
            new_budget=new_budget,
            new_parent=new_parent,
        )
