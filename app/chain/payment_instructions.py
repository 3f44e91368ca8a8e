"""Builds the instructions of payments and their approvals."""

from typing import Literal, Unpack

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.builder import Builder, SpendingAccounts, complete

SpendingKind = Literal["Payment", "Escrow", "Allowance"]
"""The purpose of an approval. The index of a kind is its code in accounts and events."""


class PaymentInstructions(Builder):
    """Builds the instructions that approve, check and execute payments, in micro-USDC and Unix seconds."""

    def approve_payment(
        self,
        *,
        payer: Pubkey,
        operator: Pubkey,
        vault: Pubkey,
        policy: Pubkey,
        reference: bytes,
        recipient: Pubkey,
        amount: int,
        expires_at: int,
        policy_version: int,
        expected_approvals: int,
        kind: SpendingKind = "Payment",
        terms: bytes = bytes(32),
    ) -> Instruction:
        """Store the operator's approval of one payment, escrow or allowance with this exact amount and recipient.

        The program refuses the approval if the policy is not at `policy_version`, or if the vault's counter `approvals`
        is not `expected_approvals`. ``terms`` is the `terms_hash` of an escrow.
        """
        return self._build(
            "approve_payment",
            {
                "reference": reference,
                "recipient": recipient,
                "amount": amount,
                "expires_at": expires_at,
                "kind": kind,
                "terms": terms,
                "policy_version": policy_version,
                "expected_approvals": expected_approvals,
            },
            payer=payer,
            operator=operator,
            vault=vault,
            policy=policy,
            approval=self._addresses.approval(vault, reference),
        )

    def forget_payee(self, *, operator: Pubkey, vault: Pubkey, address: Pubkey, first_paid: int) -> Instruction:
        """Declare a payee unknown to a vault. `first_paid` is the Unix time of the vault's first payment to it."""
        values = {"address": address, "first_paid": first_paid}
        return self._build("forget_payee", values, operator=operator, vault=vault)

    def close_approval(self, *, signer: Pubkey, vault: Pubkey, approval: Pubkey, rent_receiver: Pubkey) -> Instruction:
        """Revoke an unused approval. The operator may do so at any time, anyone else once it has expired."""
        return self._build(
            "close_approval", {}, signer=signer, vault=vault, approval=approval, rent_receiver=rent_receiver
        )

    def execute_payment(
        self,
        *,
        signer: Pubkey,
        policy: Pubkey,
        vault: Pubkey,
        destination: Pubkey,
        amount: int,
        reference: bytes,
        **optional: Unpack[SpendingAccounts],
    ) -> Instruction:
        """Pay from the vault into the existing token account `destination`."""
        return self._build(
            "execute_payment",
            {"amount": amount, "reference": reference},
            signer=signer,
            policy=policy,
            **self._vault_accounts(vault),
            destination=destination,
            **complete(SpendingAccounts, optional),
        )

    def check_payment(
        self,
        *,
        policy: Pubkey,
        vault: Pubkey,
        amount: int,
        recipient: Pubkey,
        co_signed: bool,
        allowlist: Pubkey | None = None,
        recipient_account: Pubkey | None = None,
        budget: Pubkey | None = None,
        budget_parent: Pubkey | None = None,
        outstanding_amount: int = 0,
        outstanding_count: int = 0,
    ) -> Instruction:
        """Return the verdict of every rule and other check on a payment. Use this instruction only in simulations.

        Pass the `budget` if the vault has one, and the `budget_parent` if the budget has one. Outstanding payments,
        issued to a third party and not seen on the chain yet, count as paid.
        """
        return self._build(
            "check_payment",
            {
                "amount": amount,
                "recipient": recipient,
                "co_signed": co_signed,
                "outstanding_amount": outstanding_amount,
                "outstanding_count": outstanding_count,
            },
            policy=policy,
            vault=vault,
            vault_tokens=self._addresses.token_account(vault),
            allowlist=allowlist,
            recipient_account=recipient_account,
            budget=budget,
            budget_parent=budget_parent,
        )
