"""A request to move money out of a wallet, as a payment, escrow or allowance, and the plan of its transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.api.operation import Call
from app.approvals.service import Expense
from app.core.errors import ApiError
from app.core.identifiers import EVENT_INNER_INDEX, new_reference
from app.store.read_tables import OnChainApproval
from app.submission.context import Service
from app.submission.plan import Hook, Plan, PlanType


@dataclass(slots=True, kw_only=True)
class ExpenseRequest(Expense):
    """An expense, the ``kind`` of its transaction, its ``call``, and the parts that refused simulations have required.

    Without a ``session``, the operator signs. These are added if needed: a token account for the payee, the operator's
    co-signature, or the operator's approval. ``sought_account`` is True after a search for the payee's token account.
    ``unusable`` holds the addresses of approvals that the chain has refused.
    """

    kind: PlanType
    call: Call
    session: Keypair | None
    #: True if a third party sends the transaction. Nothing may then be added to it: no second signature, no new token
    #: account.
    issued: bool = False
    #: True if the request permits even a payee without a known owner.
    allows_unverified: bool = False
    #: Error to raise once the policy has allowed the expense.
    refusal: ApiError | None = None
    #: Check made under the wallet's lock before anything is signed. Raises the error that refuses the expense.
    first: Callable[["ExpenseRequest"], Awaitable[None]] | None = None
    #: Callback that signs parts of the next plan. It is awaited before each plan is made.
    prepare: Callable[["ExpenseRequest"], Awaitable[None]] | None = None
    reference: bytes = field(default_factory=new_reference)
    #: The signer's address, kept here because deriving it from the key is slow.
    signer: Pubkey = field(init=False)
    opens_account: bool = False
    sought_account: bool = False
    co_signed: bool = False
    approval: OnChainApproval | None = None
    unusable: set[str] = field(default_factory=set)
    refreshed: bool = False
    lists_added: bool = False

    def __post_init__(self) -> None:
        self.signer = self.service.signers.operator_address
        if self.session is not None and self.wallet.session_authority is not None:
            self.signer = Pubkey.from_string(self.wallet.session_authority)

    @property
    def service(self) -> Service:
        """The service that handles the request."""
        return self.call.service

    @property
    def principal(self) -> Principal:
        """The caller who requests the expense."""
        return self.call.principal

    @property
    def policy_triggered(self) -> bool:
        """True if the policy required the operator's consent: a co-signature or an approval."""
        return self.co_signed or self.approval is not None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the instructions of payments, escrows and allowances share."""
        policy, approval, addresses = self.wallet.policy, self.approval, self.service.addresses
        org = Pubkey.from_string(self.wallet.org)
        consulted = policy.rules.blocked_categories or policy.rules.restricted
        return {
            "signer": self.signer,
            "policy": Pubkey.from_string(policy.address),
            "vault": Pubkey.from_string(self.wallet.vault),
            "amount": self.amount,
            "reference": self.reference,
            "allowlist": Pubkey.from_string(policy.allowlist) if policy.allowlist else None,
            "budget": Pubkey.from_string(self.wallet.budget) if self.wallet.budget else None,
            "budget_parent": Pubkey.from_string(self.wallet.budget_parent) if self.wallet.budget_parent else None,
            "recipient": addresses.recipient(org, self.payee.owner) if consulted else None,
            "co_signer": self.service.signers.operator_address if self.co_signed else None,
            "approval": Pubkey.from_string(approval.address) if approval else None,
            "approval_rent_receiver": Pubkey.from_string(approval.payer) if approval else None,
        }

    def plan(
        self,
        instructions: list[Instruction],
        on_store: Hook,
        *,
        event_instruction: int = 0,
        event_inner: int = EVENT_INNER_INDEX,
        fee_payer: Pubkey | None = None,
    ) -> Plan:
        """Return the plan of the transaction that moves the money. A ``fee_payer``, if given, sends the transaction."""
        operator = self.service.signers.operator
        first = self.session or operator
        beside = self.session is not None and (self.co_signed or self.purpose == "allowance")
        return Plan(
            org=self.wallet.org,
            type=self.kind,
            instructions=instructions,
            signers=[first, operator] if beside else [first],
            event_instruction=event_instruction,
            event_inner=event_inner,
            wallet_id=self.wallet.wallet_id,
            recipient=self.payee.name,
            recipient_address=str(self.payee.owner),
            amount=self.amount,
            policy_id=self.wallet.policy.policy_id,
            policy_triggered=self.policy_triggered,
            memo=self.memo,
            asked_by=self.principal.actor,
            reference=self.reference,
            attested=self.session is not None,
            opens_account=self.opens_account,
            on_store=on_store,
            fee_payer=fee_payer,
            refusal=self.refusal,
        )
