"""Builds the instructions of budgets."""

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder
from app.chain.rules import BudgetLimits


class BudgetInstructions(Builder):
    """Builds the instructions that create, change and close budgets and put vaults into them."""

    def create_budget(self, *, payer: Pubkey, authority: Pubkey, key: bytes, limits: BudgetLimits) -> Instruction:
        """Create a budget without vaults; `key` is its 16-byte name."""
        return self._build(
            "create_budget",
            {"key": key, "limits": limits.to_args()},
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

    def close_budget(self, *, authority: Pubkey, budget: Pubkey, rent_receiver: Pubkey) -> Instruction:
        """Close a budget without vaults; its rent goes to `rent_receiver`, which paid it."""
        return self._build("close_budget", {}, authority=authority, budget=budget, rent_receiver=rent_receiver)

    def set_wallet_budget(
        self,
        *,
        signer: Pubkey,
        vault: Pubkey,
        budget: Pubkey | None = None,
        new_budget: Pubkey | None = None,
        authority: Pubkey | None = None,
    ) -> Instruction:
        """Move the vault from `budget` to `new_budget`; `None` stands for no budget in both.

        If the vault has a budget, `signer` is the authority. If it has none, `signer` is the operator, and with
        the organisation's `authority_attaches`, the `authority` must also sign.
        """
        return self._build(
            "set_wallet_budget",
            {},
            signer=signer,
            authority=authority,
            vault=vault,
            budget=budget,
            new_budget=new_budget,
        )
