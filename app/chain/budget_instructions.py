"""Builds the instructions of budgets."""

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder
from app.chain.rules import BudgetLimits


class BudgetInstructions(Builder):
    """Builds the instructions that create, change and close budgets and put vaults into them."""

    def create_budget(
        self, *, payer: Pubkey, authority: Pubkey, key: bytes, limits: BudgetLimits, expected_sequence: int
    ) -> Instruction:
        """Create a budget without vaults; `key` is its 16-byte name.

        `expected_sequence` is the organisation's `authority_sequence`.
        """
        return self._build(
            "create_budget",
            {"key": key, "limits": limits.to_args(), "expected_sequence": expected_sequence},
            payer=payer,
            authority=authority,
            budget=self._addresses.budget(self.org, key),
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
        self, *, authority: Pubkey, budget: Pubkey, rent_receiver: Pubkey, expected_version: int
    ) -> Instruction:
        """Close a budget without vaults that is still at `expected_version`.

        Its rent goes to `rent_receiver`, which paid it.
        """
        args = {"expected_version": expected_version}
        return self._build("close_budget", args, authority=authority, budget=budget, rent_receiver=rent_receiver)

    def set_wallet_budget(
        self,
        *,
        signer: Pubkey,
        vault: Pubkey,
        expected_attachments: int,
        budget: Pubkey | None = None,
        new_budget: Pubkey | None = None,
        budget_version: int | None = None,
        authority: Pubkey | None = None,
    ) -> Instruction:
        """Move the vault from `budget` to `new_budget`. For both, `None` means no budget.

        `expected_attachments` is the vault's current `attachments`, and `budget_version` the version of `new_budget`.

        If the vault has a budget, `signer` is the authority. Otherwise, `signer` is the operator. If the organisation
        has set `authority_attaches`, the `authority` must then also sign.
        """
        return self._build(
            "set_wallet_budget",
            {"expected_attachments": expected_attachments, "budget_version": budget_version},
            signer=signer,
            authority=authority,
            vault=vault,
            budget=budget,
            new_budget=new_budget,
        )
