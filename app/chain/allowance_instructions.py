"""Builds the instructions of allowances."""

from dataclasses import dataclass
from typing import Unpack

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder, GrantAccounts, complete

MAX_OPEN_ALLOWANCES = 4
"""Maximum number of outstanding allowances of a vault. The program has the same limit."""


@dataclass(frozen=True, slots=True)
class OpenAllowance:
    """The accounts of an outstanding allowance. `payer` gets the rent of the allowance's accounts back.

    `budget` and `budget_parent` are the budgets that counted the grant, or None if the vault did not have them at the
    time of the grant. The vault may have moved to another budget since then.
    """

    address: Pubkey
    vault: Pubkey
    payer: Pubkey
    budget: Pubkey | None = None
    budget_parent: Pubkey | None = None


class AllowanceInstructions(Builder):
    """Builds the instructions that grant and settle allowances. Amounts are micro-USDC, times Unix seconds."""

    def grant_allowance(
        self,
        *,
        payer: Pubkey,
        signer: Pubkey,
        operator: Pubkey,
        policy: Pubkey,
        vault: Pubkey,
        destination: Pubkey,
        delegate: Pubkey,
        counter: int,
        amount: int,
        reference: bytes,
        expires_at: int,
        **optional: Unpack[GrantAccounts],
    ) -> Instruction:
        """Set aside money that `delegate` can transfer. `counter` is the vault's `allowance_counter`.

        The policy judges the grant as a payment into the existing token account `destination`. The delegate is not
        bound to this destination: the holder of the delegate's key can transfer the money anywhere.
        """
        allowance, bump = self._addresses.allowance_with_bump(vault, counter)
        return self._build(
            "grant_allowance",
            {"amount": amount, "reference": reference, "expires_at": expires_at, "bump": bump},
            payer=payer,
            signer=signer,
            operator=operator,
            policy=policy,
            **self._vault_accounts(vault),
            destination=destination,
            delegate=delegate,
            allowance=allowance,
            allowance_tokens=self._addresses.allowance_tokens(allowance),
            **complete(GrantAccounts, optional),
        )

    def settle_allowance(
        self, allowance: OpenAllowance, *, signer: Pubkey | None = None, policy: Pubkey | None = None
    ) -> Instruction:
        """Take back the money that the delegate has not transferred, and revoke the delegate's right to transfer it.

        Omit `signer` once anyone may settle the allowance. Pass the vault's `policy` if anyone may settle because that
        policy was changed after the grant.
        """
        return self._build(
            "settle_allowance",
            {},
            signer=signer,
            **self._vault_accounts(allowance.vault),
            policy=policy,
            allowance=allowance.address,
            allowance_tokens=self._addresses.allowance_tokens(allowance.address),
            rent_receiver=allowance.payer,
            budget=allowance.budget,
            budget_parent=allowance.budget_parent,
        )
