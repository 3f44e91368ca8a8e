"""An organisation in a VM, with helpers for the needs of most tests."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM, Addresses
from app.chain.instructions import UNLIMITED, Session
from app.chain.payment_instructions import SpendingKind
from app.chain.rules import BudgetLimits, Rules
from tests.support.present import PresentInstructions
from tests.support.vm import CODEC, LAMPORTS, PROGRAM_ID, START, Receipt, Vm
from tests.support.vm_tokens import USDC, mint_data, place_token_account, token_balance

GENESIS_HASH = bytes(range(32))
"""Genesis hash of the cluster that the organisations of these tests are made for. A VM has no hash of its own."""
NONE = Pubkey.default()
"""The address zero, which means "none" in a field of an account or event."""
SESSION_ENDS = START + 10**9
OPEN = Rules()
"""A policy without rules."""
CHUNK = 20
"""Number of allowlist entries that fit into one transaction."""


@dataclass(frozen=True)
class Payee:
    """A recipient: the owner and one of their token accounts."""

    owner: Pubkey
    tokens: Pubkey


class VmWorld:
    """An organisation with its roles, mint and reserve. `build` makes instructions, `vm` sends them."""

    def __init__(
        self,
        vm: Vm | None = None,
        *,
        org_id: str = "acme",
        mint: Pubkey | None = None,
        token_program: Pubkey = TOKEN_PROGRAM,
        reserve: int = 10**6 * USDC,
        operator_daily_limit: int = UNLIMITED,
        attestation_delay: int = 0,
    ) -> None:
        self.vm = vm or Vm()
        self.mint = mint or self.vm.put(Pubkey.new_unique(), mint_data(), token_program)
        self.token_program = token_program
        self.payer = self.vm.key(10**5 * LAMPORTS)
        self.authority, self.operator, self.session = self.vm.key(), self.vm.key(), self.vm.key()
        self.arbiter, self.verifier, self.stranger = self.vm.key(), self.vm.key(), self.vm.key(LAMPORTS)
        self.org_id = org_id
        self.settings = {"operator_daily_limit": operator_daily_limit, "attestation_delay": attestation_delay}
        self.addresses = Addresses(PROGRAM_ID, self.mint, token_program)
        self.org = self.addresses.org(self.authority, org_id)
        self.build = PresentInstructions(CODEC, self.addresses, self.org, self.vm.data_or_none)
        self.reserve = self.build.reserve_tokens
        self.initialized = self.vm.succeed(self.initialize())
        self.fill(self.reserve, self.org, reserve)
        self._numbers = 0

    def initialize(self) -> Instruction:
        """Return the instruction that creates this organisation."""
        return self.build.initialize_org(
            payer=self.payer,
            creator=self.authority,
            org_id=self.org_id,
            genesis_hash=GENESIS_HASH,
            operator=self.operator,
            arbiter=self.arbiter,
            verifier=self.verifier,
            **self.settings,
        )

    def fill(self, tokens: Pubkey, owner: Pubkey, amount: int) -> None:
        """Set the balance of a token account."""
        place_token_account(self.vm, self.mint, owner, amount, program=self.token_program, at=tokens)

    def number(self) -> int:
        """Return a number that has not been returned before."""
        self._numbers += 1
        return self._numbers

    def fields(self, address: Pubkey) -> dict[str, Any]:
        """Return the fields of an account of the program."""
        return CODEC.decode_account(self.vm.data(address)).data

    def balance(self, tokens: Pubkey) -> int:
        """Return the micro-USDC in a token account."""
        return token_balance(self.vm, tokens)

    def tokens_of(self, owner: Pubkey) -> Pubkey:
        """Return the associated token account of an address."""
        return self.addresses.token_account(owner)

    def payee(self, owner: Pubkey | None = None) -> Payee:
        """Create an empty token account of `owner`, or of a new address."""
        owner = owner or Pubkey.new_unique()
        tokens = self.tokens_of(owner)
        self.fill(tokens, owner, 0)
        return Payee(owner, tokens)

    def policy(self, rules: Rules = OPEN, entries: Sequence[bytes] | None = None) -> Pubkey:
        """Create a policy. If `entries` are given, they are put in force as its allowlist."""
        key = self.number().to_bytes(16, "big")
        self.vm.succeed(self.build.create_policy(payer=self.payer, authority=self.authority, key=key, rules=rules))
        policy = self.addresses.policy(self.org, key)
        if entries is not None:
            new = self.write_allowlist(policy, entries)
            self.update_policy(policy, rules, new_allowlist=new)
        return policy

    def next_allowlist(self, policy: Pubkey) -> Pubkey:
        """Return the address of the policy's next allowlist."""
        return self.addresses.allowlist(policy, self.fields(policy)["next_allowlist_version"])

    def chunk(
        self,
        policy: Pubkey,
        entries: Sequence[bytes],
        *,
        offset: int = 0,
        seal: bool = True,
        writer: Pubkey | None = None,
    ) -> Instruction:
        """Return the instruction that writes a chunk of the policy's next allowlist, by the operator by default."""
        return self.build.write_allowlist(
            payer=self.payer,
            writer=writer or self.operator,
            policy=policy,
            version=self.fields(policy)["next_allowlist_version"],
            offset=offset,
            entries=entries,
            seal=seal,
        )

    def write_allowlist(self, policy: Pubkey, entries: Sequence[bytes]) -> Pubkey:
        """Write and seal the policy's next allowlist, and return its address."""
        entries = sorted(entries)
        for offset in range(0, max(len(entries), 1), CHUNK):
            chunk = entries[offset : offset + CHUNK]
            self.vm.succeed(self.chunk(policy, chunk, offset=offset, seal=offset + CHUNK >= len(entries)))
        return self.next_allowlist(policy)

    def policy_update(self, policy: Pubkey, rules: Rules, **accounts: Any) -> Instruction:
        """Return the instruction that gives a policy these rules.

        Without an expected version in `accounts`, the instruction expects the policy's current version. The allowlist's
        entries are those of the account `new_allowlist`.
        """
        expected = accounts.pop("expected_version", self.fields(policy)["version"])
        new = accounts.get("new_allowlist")
        if new is not None and "entries" not in accounts:
            account = CODEC.decode_account(self.vm.data(new)) if self.vm.exists(new) else None
            accounts["entries"] = account.data["entries"] if account and account.name == "Allowlist" else ()
        return self.build.update_policy(
            authority=self.authority, policy=policy, expected_version=expected, rules=rules, **accounts
        )

    def update_policy(self, policy: Pubkey, rules: Rules, **accounts: Any) -> Receipt:
        """Give a policy these rules."""
        return self.vm.succeed(self.policy_update(policy, rules, **accounts))

    def policy_closing(self, policy: Pubkey, **accounts: Any) -> Instruction:
        """Return the instruction that closes a policy. The payer paid for the policy, its list and the next list."""
        fields = self.fields(policy)
        allowlist = None if fields["allowlist"] == NONE else fields["allowlist"]
        given = {
            "authority": self.authority,
            "policy_rent_receiver": self.payer,
            "next_version": fields["next_allowlist_version"],
            "allowlist": allowlist,
            "allowlist_rent_receiver": None if allowlist is None else self.payer,
        }
        if self.vm.exists(self.next_allowlist(policy)):
            given["next_rent_receiver"] = self.payer
        return self.build.close_policy(policy=policy, **{**given, **accounts})

    def budget(self, parent: Pubkey | None = None, /, **limits: int) -> Pubkey:
        """Create a budget with these limits, which may belong to a parent."""
        key = self.number().to_bytes(16, "big")
        given = BudgetLimits(**limits)
        create = self.build.create_budget(
            payer=self.payer, authority=self.authority, key=key, limits=given, parent=parent
        )
        self.vm.succeed(create)
        return self.addresses.budget(self.org, key)

    def parent_of(self, budget: Pubkey | None) -> Pubkey | None:
        """Return the parent of a budget."""
        parent = NONE if budget is None else self.fields(budget)["parent"]
        return None if parent == NONE else parent

    def budget_update(self, budget: Pubkey, **limits: int) -> Instruction:
        """Return the instruction that gives a budget these limits, expecting its current version."""
        version = self.fields(budget)["version"]
        return self.build.update_budget(
            authority=self.authority, budget=budget, expected_version=version, limits=BudgetLimits(**limits)
        )

    def budget_closing(self, budget: Pubkey) -> Instruction:
        """Return the instruction that closes a budget."""
        return self.build.close_budget(
            authority=self.authority, budget=budget, rent_receiver=self.payer, parent=self.parent_of(budget)
        )

    def budget_of(self, vault: Pubkey) -> Pubkey | None:
        """Return the vault's budget."""
        budget: Pubkey = self.fields(vault)["budget"]
        return None if budget == NONE else budget

    def budgets_of(self, vault: Pubkey) -> dict[str, Pubkey | None]:
        """Return the vault's budget and that budget's parent, as optional accounts."""
        budget = self.budget_of(vault)
        return {"budget": budget, "budget_parent": self.parent_of(budget)}

    def joining(self, vault: Pubkey, budget: Pubkey | None) -> Instruction:
        """Return the instruction that puts a vault into a budget or none, signed by the required role."""
        current = self.budgets_of(vault)
        signer = self.operator if current["budget"] is None else self.authority
        new = {"new_budget": budget, "new_parent": self.parent_of(budget)}
        return self.build.set_wallet_budget(signer=signer, vault=vault, **current, **new)

    def member(self, budget: Pubkey, policy: Pubkey | Rules = OPEN) -> Pubkey:
        """Create a vault in a budget."""
        vault = self.wallet(policy)
        self.vm.succeed(self.joining(vault, budget))
        return vault

    def wallet_creation(self, agent_id: str, policy: Pubkey, session: Session | None = None) -> Instruction:
        """Return the instruction that creates an agent's vault."""
        return self.build.create_wallet(
            payer=self.payer, operator=self.operator, agent_id=agent_id, policy=policy, session=session
        )

    def wallet(self, policy: Pubkey | Rules = OPEN, funds: int = 1_000 * USDC) -> Pubkey:
        """Create a vault with a session authority and `funds`, under a policy or a new one with these rules."""
        agent_id = f"agent-{self.number()}"
        policy = self.policy(policy) if isinstance(policy, Rules) else policy
        self.vm.succeed(self.wallet_creation(agent_id, policy, (self.session, SESSION_ENDS)))
        vault = self.addresses.vault(self.org, agent_id)
        if funds:
            self.vm.succeed(self.funding(vault, funds))
        return vault

    def funding(self, vault: Pubkey, amount: int, **options: Any) -> Instruction:
        """Return the instruction that moves money from the reserve to a vault."""
        reference = options.pop("reference", None) or secrets.token_bytes(16)
        return self.build.fund_wallet(
            operator=self.operator, vault=vault, amount=amount, reference=reference, **options
        )

    def registration(
        self, address: Pubkey, category: int = 0, domain: str | None = None, signer: Pubkey | None = None
    ) -> Instruction:
        """Return the instruction that registers a recipient, by the operator unless `signer` is given."""
        return self.build.register_recipient(
            payer=self.payer, signer=signer or self.operator, address=address, category=category, domain=domain
        )

    def approval(
        self,
        vault: Pubkey,
        payee: Payee,
        amount: int,
        *,
        expires_in: int = 3_600,
        reference: bytes | None = None,
        kind: SpendingKind = "Payment",
        terms: bytes = bytes(32),
    ) -> Pubkey:
        """Approve a payment, an escrow or an allowance as the operator, and return the approval's address."""
        reference = reference or secrets.token_bytes(16)
        approve = self.approving(vault, payee.owner, amount, self.vm.now + expires_in, reference, kind, terms)
        self.vm.succeed(approve)
        return self.addresses.approval(vault, reference)

    def approving(  # noqa: PLR0917
        self,
        vault: Pubkey,
        recipient: Pubkey,
        amount: int,
        expires_at: int,
        reference: bytes,
        kind: SpendingKind = "Payment",
        terms: bytes = bytes(32),
    ) -> Instruction:
        """Return the instruction that approves a payment, an escrow or an allowance."""
        return self.build.approve_payment(
            payer=self.payer,
            operator=self.operator,
            vault=vault,
            policy=self.fields(vault)["policy"],
            reference=reference,
            recipient=recipient,
            amount=amount,
            expires_at=expires_at,
            kind=kind,
            terms=terms,
        )

    def payment(self, vault: Pubkey, payee: Payee, amount: int = USDC, **options: Any) -> Instruction:
        """Return a payment by the session authority, with the accounts that the vault's policy needs."""
        policy = self.fields(vault)["policy"]
        rules = self.fields(policy)
        accounts: dict[str, Any] = {
            "signer": self.session,
            "policy": policy,
            "destination": payee.tokens,
            "reference": secrets.token_bytes(16),
            "allowlist": None if rules["allowlist"] == NONE else rules["allowlist"],
            "recipient": self.addresses.recipient(self.org, payee.owner),
            **self.budgets_of(vault),
        }
        if options.get("approval") is not None:
            accounts["approval_rent_receiver"] = self.payer
        return self.build.execute_payment(vault=vault, amount=amount, **{**accounts, **options})

    def check(
        self, vault: Pubkey, payee: Payee, amount: int = USDC, *, co_signed: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Return the program's preview of a payment."""
        policy = self.fields(vault)["policy"]
        allowlist = self.fields(policy)["allowlist"]
        accounts = {
            "policy": policy,
            "allowlist": None if allowlist == NONE else allowlist,
            "recipient_account": self.addresses.recipient(self.org, payee.owner),
            **self.budgets_of(vault),
            **options,
        }
        instruction = self.build.check_payment(
            vault=vault, amount=amount, recipient=payee.owner, co_signed=co_signed, **accounts
        )
        result = self.vm.simulate(instruction)
        assert result.error is None, "\n".join([result.error, *result.logs])
        returned = result.meta.return_data()  # type: ignore[attr-defined] # the stub names it differently
        assert returned.program_id == PROGRAM_ID
        return CODEC.decode_return("PaymentCheck", returned.data)

    def pause(self) -> None:
        """Pause the organisation as the operator."""
        self.vm.succeed(self.build.update_org(signer=self.operator, paused=True))

    def freeze(self, vault: Pubkey, action: Any = "Freeze", *, signer: Pubkey | None = None) -> Instruction:
        """Return the instruction that freezes or unfreezes a vault, by the operator unless `signer` is given."""
        fields = self.fields(vault)
        return self.build.freeze_wallet(
            signer=signer or self.operator,
            vault=vault,
            policy=None if action == "Freeze" else fields["policy"],
            action=action,
            expected_sequence=fields["frozen_sequence"] if action == "Unfreeze" else None,
        )

    def org_update(self, *, signer: Pubkey | None = None, **changes: Any) -> Instruction:
        """Return the instruction that changes the organisation, expecting its current sequence number.

        The authority signs it, unless `signer` is given.
        """
        expected = changes.pop("expected_sequence", self.fields(self.org)["authority_sequence"])
        return self.build.update_org(signer=signer or self.authority, expected_sequence=expected, **changes)
