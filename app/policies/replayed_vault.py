"""A vault of a replay: its payments, escrows and allowances, and their settlements."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from solders.pubkey import Pubkey
from spl.token.instructions import TransferCheckedParams, transfer_checked

from app.chain.addresses import Addresses
from app.chain.allowance_instructions import MAX_OPEN_ALLOWANCES, OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from app.chain.instructions import Instructions
from app.core.identifiers import new_reference
from app.policies.replay_vm import ReplayVm
from app.store.policy_history import PastPayment

_ANY_HASH = bytes(32)
_ANY_PROOF = 1
#: Timeout of replayed escrows in seconds. Any value works, because every escrow is disputed immediately.
_TIMEOUT = 86_400


@dataclass(frozen=True, slots=True)
class Stage:
    """The VM of a replay, the organisation's roles, and the mint's decimals."""

    vm: ReplayVm
    build: Instructions
    addresses: Addresses
    authority: Pubkey
    operator: Pubkey
    arbiter: Pubkey
    decimals: int


class _Due(NamedTuple):
    """A settlement: its Unix second, a number that orders the settlements of one second, and the settlement itself."""

    second: int
    number: int
    settle: Callable[[], None]
    is_allowance: bool


@dataclass(slots=True)
class ReplayedVault:
    """A vault, the numbers that its next changes must name, and its coming settlements as a heap."""

    stage: Stage
    vault: Pubkey
    policy: Pubkey
    attachments: int = 0
    approvals: int = 0
    escrows: int = 0
    allowances: int = 0
    outstanding: int = 0
    due: list[_Due] = field(default_factory=list)

    def attach(self, policy: Pubkey, version: int) -> None:
        """Attach another policy, at its version ``version``, to the vault."""
        move = self.stage.build.update_wallet(
            operator=self.stage.operator,
            vault=self.vault,
            policy=self.policy,
            new_policy=policy,
            policy_version=version,
            expected_attachments=self.attachments,
            authority=self.stage.authority,
        )
        self.stage.vm.do(move)
        self.policy, self.attachments = policy, self.attachments + 1

    def settle_until(self, now: int) -> None:
        """Set the clock to a Unix second, after the settlements that were due before."""
        while self.due and self.due[0].second <= now:
            due = heapq.heappop(self.due)
            self.stage.vm.set_time(due.second)
            due.settle()
        self.stage.vm.set_time(now)

    def pay(self, payment: PastPayment, common: Mapping[str, Any]) -> Sequence[str] | None:
        """Make a payment. Returns the log of its refusal, or None if it passes, as `lock` and `grant` do."""
        destination = self.stage.addresses.token_account(Pubkey.from_string(payment.recipient_address))
        return self.stage.vm.attempt(self.stage.build.execute_payment(**common, destination=destination))

    def lock(self, payment: PastPayment, common: Mapping[str, Any]) -> Sequence[str] | None:
        """Create an escrow, and dispute it, so that the arbiter can refund any part of it later."""
        stage, payee, counter = self.stage, Pubkey.from_string(payment.recipient_address), self.escrows
        create = stage.build.create_escrow(
            **common,
            payer=stage.vm.payer,
            receiver=payee,
            counter=counter,
            task_hash=_ANY_HASH,
            proof_kinds=_ANY_PROOF,
            timeout=_TIMEOUT,
        )
        refusal = stage.vm.attempt(create)
        if refusal is None:
            escrow = OpenEscrow(stage.addresses.escrow(self.vault, counter), self.vault, payee, stage.vm.payer)
            hashes = {"reason_hash": _ANY_HASH, "evidence_hash": _ANY_HASH}
            stage.vm.do(stage.build.dispute_escrow(escrow, signer=stage.operator, **hashes))
            self.escrows = counter + 1
            self._settle_later(payment, partial(self._refund, escrow, payment.released or 0))
        return refusal

    def grant(
        self, payment: PastPayment, common: Mapping[str, Any], now: int, *, approved_at: int | None
    ) -> Sequence[str] | None:
        """Grant an allowance. With ``approved_at``, the policy's version, the operator approves it first."""
        self._make_room()
        stage, counter, delegate = self.stage, self.allowances, Pubkey.new_unique()
        approval: dict[str, Any] = {} if approved_at is None else self._approve(payment, now, approved_at)
        grant = stage.build.grant_allowance(
            **common,
            **approval,
            payer=stage.vm.payer,
            operator=stage.operator,
            destination=stage.addresses.token_account(Pubkey.from_string(payment.recipient_address)),
            delegate=delegate,
            counter=counter,
            expires_at=now + 1,
        )
        refusal = stage.vm.attempt(grant)
        if refusal is None:
            self.allowances, self.outstanding = counter + 1, self.outstanding + 1
            granted = OpenAllowance(stage.addresses.allowance(self.vault, counter), self.vault, stage.vm.payer)
            self._settle_later(payment, partial(self._settle, granted, delegate, payment))
        return refusal

    def _settle_later(self, payment: PastPayment, settle: Callable[[], None]) -> None:
        """Settle an escrow or allowance when the original was settled, if it was."""
        if payment.settled_at is not None:
            number = self.escrows + self.allowances
            heapq.heappush(self.due, _Due(payment.settled_at, number, settle, payment.allowance))

    def _make_room(self) -> None:
        """Settle the next allowance early if as many are outstanding as the program permits.

        A replay grants an allowance at the time of its request. The original may have been granted later, after another
        allowance had been settled.
        """
        if self.outstanding == MAX_OPEN_ALLOWANCES:
            due = min(one for one in self.due if one.is_allowance)
            self.due.remove(due)
            heapq.heapify(self.due)
            due.settle()

    def _approve(self, payment: PastPayment, now: int, version: int) -> dict[str, Any]:
        """Approve an allowance, and return the accounts that use the approval."""
        stage, reference = self.stage, new_reference()
        approve = stage.build.approve_payment(
            payer=stage.vm.payer,
            operator=stage.operator,
            vault=self.vault,
            policy=self.policy,
            reference=reference,
            recipient=Pubkey.from_string(payment.recipient_address),
            amount=payment.amount,
            expires_at=now + 1,
            policy_version=version,
            expected_approvals=self.approvals,
            kind="Allowance",
        )
        stage.vm.do(approve)
        self.approvals += 1
        return {
            "approval": stage.addresses.approval(self.vault, reference),
            "approval_rent_receiver": stage.vm.payer,
        }

    def _refund(self, escrow: OpenEscrow, released: int) -> None:
        stage = self.stage
        sequence = stage.vm.state(escrow.address)["dispute_sequence"]
        decision = stage.build.resolve_dispute(
            escrow, payer=stage.vm.payer, arbiter=stage.arbiter, released=released, expected_sequence=sequence
        )
        stage.vm.do(decision)

    def _settle(self, allowance: OpenAllowance, delegate: Pubkey, payment: PastPayment) -> None:
        """Transfer the spent amount as the delegate, and take back the rest."""
        stage = self.stage
        if payment.released:
            transfer = transfer_checked(
                TransferCheckedParams(
                    program_id=stage.addresses.token_program,
                    source=stage.addresses.allowance_tokens(allowance.address),
                    mint=stage.addresses.mint,
                    dest=stage.addresses.token_account(Pubkey.from_string(payment.recipient_address)),
                    owner=delegate,
                    amount=payment.released,
                    decimals=stage.decimals,
                )
            )
            stage.vm.do(transfer)
        stage.vm.do(stage.build.settle_allowance(allowance, signer=stage.operator))
        self.outstanding -= 1
