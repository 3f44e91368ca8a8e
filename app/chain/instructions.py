"""Builds the program's instructions. Each method builds one from addresses and values, without reading the chain."""

from typing import Any, Literal

from solders.compute_budget import set_compute_unit_limit
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, agent_hash, domain_digest, org_hash
from app.chain.allowance_instructions import AllowanceInstructions
from app.chain.budget_instructions import BudgetInstructions
from app.chain.escrow_instructions import EscrowInstructions
from app.chain.payment_instructions import PaymentInstructions
from app.chain.policy_instructions import PolicyInstructions
from app.core.identifiers import PRESET_POLICY_IDS
from app.core.money import MAX_MICRO

Session = tuple[Pubkey, int]
"""A session authority and its expiry in Unix seconds."""

UNLIMITED = MAX_MICRO
"""Value of `operator_daily_limit` that permits the operator to fund vaults without a limit."""

MAX_UNITS = 1_400_000
"""Maximum number of compute units that a transaction may request (Solana's limit)."""

_ORG_CHANGES = (
    "pending_authority",
    "operator",
    "arbiter",
    "verifier",
    "operator_daily_limit",
    "attestation_delay",
    "paused",
    "authority_attaches",
)
_CREATE_IDEMPOTENT = b"\x01"


class Instructions(
    PolicyInstructions, BudgetInstructions, PaymentInstructions, EscrowInstructions, AllowanceInstructions
):
    """Builds the instructions for one organisation. Amounts are micro-USDC; times are Unix seconds.

    Every method raises `idl.codec.CodecError` if a value does not fit its field.
    """

    def initialize_org(
        self,
        *,
        payer: Pubkey,
        creator: Pubkey,
        org_id: str,
        genesis_hash: bytes,
        operator: Pubkey,
        arbiter: Pubkey,
        verifier: Pubkey,
        operator_daily_limit: int = UNLIMITED,
        attestation_delay: int = 0,
    ) -> Instruction:
        """Create the organisation with its reserve and presets; `creator` becomes the authority.

        `genesis_hash` must be the hash of this cluster; the program cannot check it.
        """
        presets = {
            identifier.replace("pol_", "preset_"): self._addresses.preset(self.org, identifier)
            for identifier in PRESET_POLICY_IDS
        }
        return self._build(
            "initialize_org",
            {
                "args": {
                    "org_hash": org_hash(org_id),
                    "genesis_hash": genesis_hash,
                    "operator": operator,
                    "arbiter": arbiter,
                    "verifier": verifier,
                    "operator_daily_limit": operator_daily_limit,
                    "attestation_delay": attestation_delay,
                }
            },
            payer=payer,
            creator=creator,
            reserve_tokens=self.reserve_tokens,
            **presets,
            **self._token_accounts(),
        )

    def update_org(self, *, signer: Pubkey, expected_sequence: int | None = None, **changes: Any) -> Instruction:
        """Change the given settings of the organisation and keep the others.

        `expected_sequence` is the organisation's `authority_sequence`. Only a change that just pauses the organisation
        may omit it.
        """
        args = {"changes": {**dict.fromkeys(_ORG_CHANGES), **changes}, "expected_sequence": expected_sequence}
        return self._build("update_org", args, signer=signer)

    def accept_authority(self, *, new_authority: Pubkey, expected_sequence: int) -> Instruction:
        """Give the authority's role to the proposed authority, which signs this instruction.

        `expected_sequence` is the organisation's `authority_sequence`.
        """
        return self._build("accept_authority", {"expected_sequence": expected_sequence}, new_authority=new_authority)

    def create_wallet(
        self,
        *,
        payer: Pubkey,
        operator: Pubkey,
        agent_id: str,
        policy: Pubkey,
        policy_version: int,
        session: Session | None = None,
        authority: Pubkey | None = None,
    ) -> Instruction:
        """Create the agent's vault and token account under the policy, which must be at `policy_version`.

        If the organisation has set `authority_attaches`, the `authority` also signs.
        """
        vault = self._addresses.vault(self.org, agent_id)
        return self._build(
            "create_wallet",
            {"agent_hash": agent_hash(agent_id), "session": _session(session), "policy_version": policy_version},
            payer=payer,
            operator=operator,
            authority=authority,
            policy=policy,
            **self._vault_accounts(vault),
        )

    def update_wallet(
        self,
        *,
        operator: Pubkey,
        vault: Pubkey,
        session: Session | None = None,
        expected_sessions: int | None = None,
        policy: Pubkey | None = None,
        new_policy: Pubkey | None = None,
        policy_version: int | None = None,
        expected_attachments: int | None = None,
        authority: Pubkey | None = None,
    ) -> Instruction:
        """Give the vault a session authority, move the vault from `policy` to `new_policy`, or both.

        For a session, `expected_sessions` is the vault's current `sessions`. For a move, `expected_attachments` is the
        vault's current `attachments`, and `policy_version` is the version of `new_policy`.

        If the organisation has set `authority_attaches`, the `authority` also signs a move.
        """
        return self._build(
            "update_wallet",
            {
                "session_change": None
                if session is None
                else {"session": _session(session), "expected_sessions": expected_sessions},
                "policy_change": None
                if new_policy is None
                else {"policy_version": policy_version, "expected_attachments": expected_attachments},
            },
            operator=operator,
            authority=authority,
            vault=vault,
            policy=policy,
            new_policy=new_policy,
        )

    def freeze_wallet(
        self,
        *,
        signer: Pubkey,
        vault: Pubkey,
        policy: Pubkey | None = None,
        action: Literal["Freeze", "Unfreeze", "Expire"],
        expected_sequence: int | None = None,
    ) -> Instruction:
        """Freeze the vault, unfreeze it, or record that its policy expired.

        Omit `policy` for `Freeze`, so that changes to the policy cannot delay the freeze. For `Unfreeze`, pass the
        vault's `frozen_sequence` as `expected_sequence`.
        """
        args = {"action": action, "expected_sequence": expected_sequence}
        return self._build("freeze_wallet", args, signer=signer, vault=vault, policy=policy)

    def close_wallet(
        self,
        *,
        operator: Pubkey,
        vault: Pubkey,
        policy: Pubkey,
        rent_receiver: Pubkey,
        expected_sequence: int,
        budget: Pubkey | None = None,
    ) -> Instruction:
        """Archive an empty vault that is still at `expected_sequence`, and take it out of its budget.

        The vault's account remains but becomes smaller. The rent that the account no longer needs returns to
        `rent_receiver`, which paid it.
        """
        return self._build(
            "close_wallet",
            {"expected_sequence": expected_sequence},
            operator=operator,
            vault=vault,
            policy=policy,
            budget=budget,
            vault_tokens=self._addresses.token_account(vault),
            rent_receiver=rent_receiver,
        )

    def fund_wallet(
        self, *, operator: Pubkey, vault: Pubkey, amount: int, reference: bytes, only_below: int | None = None
    ) -> Instruction:
        """Move USDC from the reserve to the vault; with `only_below`, only if the vault holds less than that."""
        return self._build(
            "fund_wallet",
            {"amount": amount, "reference": reference, "only_below": only_below},
            operator=operator,
            **self._vault_accounts(vault),
            reserve_tokens=self.reserve_tokens,
        )

    def withdraw(
        self,
        *,
        operator: Pubkey,
        vault: Pubkey,
        amount: int | None,
        reference: bytes,
        rent_receiver: Pubkey | None = None,
    ) -> Instruction:
        """Move USDC from the vault to the reserve; `amount` = `None` moves all of it.

        `rent_receiver`, which paid the vault's rent, gets the vault's lamports above the rent-exempt minimum.
        """
        return self._build(
            "withdraw",
            {"amount": amount, "reference": reference},
            operator=operator,
            **self._vault_accounts(vault),
            reserve_tokens=self.reserve_tokens,
            rent_receiver=rent_receiver,
        )

    def withdraw_reserve(
        self, *, authority: Pubkey, destination: Pubkey, amount: int | None, reference: bytes, expected_sequence: int
    ) -> Instruction:
        """Move USDC from the reserve to the token account `destination`; `amount` = `None` moves all of it.

        `expected_sequence` is the organisation's `authority_sequence`.
        """
        return self._build(
            "withdraw_reserve",
            {"amount": amount, "reference": reference, "expected_sequence": expected_sequence},
            authority=authority,
            reserve_tokens=self.reserve_tokens,
            destination=destination,
            **self._token_accounts(),
        )

    def register_recipient(
        self, *, payer: Pubkey, signer: Pubkey, address: Pubkey, category: int, domain: str | None, replaces: int
    ) -> Instruction:
        """Register the category and domain of a recipient's address.

        `replaces` is the sequence of the address's current registration, or zero if the address has none.
        """
        return self._build(
            "register_recipient",
            {
                "address": address,
                "domain_digest": None if domain is None else domain_digest(domain),
                "category": category,
                "replaces": replaces,
            },
            payer=payer,
            signer=signer,
            recipient=self._addresses.recipient(self.org, address),
        )

    def migrate(self, *, payer: Pubkey, account: Pubkey | None = None) -> Instruction:
        """Enlarge an account of an earlier layout to the current one.

        Without `account`, enlarges the organisation's own account.
        """
        return self._build("migrate", {}, payer=payer, account=account)

    def create_token_account(self, *, payer: Pubkey, owner: Pubkey) -> Instruction:
        """Create the owner's associated token account, or do nothing if it exists."""
        metas = [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(self._addresses.token_account(owner), is_signer=False, is_writable=True),
            *(
                AccountMeta(address, is_signer=False, is_writable=False)
                for address in (owner, self._addresses.mint, SYSTEM_PROGRAM, self._addresses.token_program)
            ),
        ]
        return Instruction(ASSOCIATED_TOKEN_PROGRAM, _CREATE_IDEMPOTENT, metas)


def compute_unit_limit(units: int) -> Instruction:
    """Return the instruction that limits its transaction to `units` compute units."""
    return set_compute_unit_limit(units)


def _session(session: Session | None) -> dict[str, Any] | None:
    return None if session is None else {"authority": session[0], "expires_at": session[1]}
