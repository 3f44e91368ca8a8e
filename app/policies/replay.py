"""Payments of the past made again in a VM of their own, under other rules: the program itself judges them.

The VM holds the built program and the organisation's account as the chain has it. Vaults begin anew, with more money
than they can spend, and their ledgers fill as they did: what came before the time of interest is charged under a
policy without rules. What the rules then refuse is not charged, and so makes room for what follows.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from app.chain.addresses import SYSTEM_PROGRAM, Addresses
from app.chain.escrow_instructions import OpenEscrow
from app.chain.instructions import MAX_UNITS, Instructions, compute_unit_limit
from app.chain.logs import policy_violation
from app.chain.records import RawAccount
from app.chain.rules import Rules
from app.core.identifiers import new_reference
from app.policies.allowlists import writes
from app.policies.terms import Terms
from app.store.policy_history import PastPayment
from idl.codec import Codec

_UNITS = compute_unit_limit(MAX_UNITS)
_LAMPORTS = 10**17
#: Micro-USDC of each vault.
_PLENTY = 2**62
_FOREVER = 2**62
#: Where a token account keeps its owner and amount, for the SPL token program and for Token-2022.
_OWNER, _AMOUNT = slice(32, 64), slice(64, 72)
_NO_RULES_KEY, _NEW_RULES_KEY = b"as it was".ljust(16), b"as it would be".ljust(16)
_ANY_HASH = bytes(32)
_ANY_PROOF = 1
MAX_TIMEOUT = 2_592_000


class ReplayError(Exception):
    """The VM refused something, and not by a rule."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the VM is made of: the program, and the chain's accounts of organisation, mint and recipients."""

    program: Path
    codec: Codec
    addresses: Addresses
    org: Pubkey
    accounts: Mapping[Pubkey, RawAccount]


class PolicyReplay:
    """The VM, with a policy that says ``terms``; to be used by the thread that made it."""

    def __init__(self, stage: Stage, terms: Terms, start: int) -> None:
        """Begin at the Unix second ``start``."""
        self._codec, self._addresses, self._org = stage.codec, stage.addresses, stage.org
        # Who signs stands in the transactions; whether they did was settled when the payments were made.
        self._svm = LiteSVM().with_sigverify(False).with_transaction_history(0).with_blockhash_check(False)
        self._svm.add_program_from_file(stage.codec.program_id, stage.program)
        for address, account in stage.accounts.items():
            self._put(address, account.owner, account.data, account.lamports)
        org = stage.codec.decode_account(stage.accounts[stage.org].data).data
        self._authority, self._operator, self._arbiter = org["authority"], org["operator"], org["arbiter"]
        self._payer, self._session = Pubkey.new_unique(), Pubkey.new_unique()
        self._put(self._payer, SYSTEM_PROGRAM, b"", _LAMPORTS)
        self._build = Instructions(stage.codec, stage.addresses, stage.org)
        self._at(start)
        if org["paused"]:
            self._do(self._build.update_org(signer=self._authority, paused=False))
        self._as_it_was = self._create_policy(_NO_RULES_KEY, Rules())
        self._as_it_would_be = self._create_policy(_NEW_RULES_KEY, terms.rules)
        self._consulted = bool(terms.rules.restricted or terms.rules.blocked_categories)
        self._list = self._write_list(terms) if terms.entries else None
        self._payees: set[Pubkey] = set()

    def judge(
        self, wallet_id: str, past: Sequence[PastPayment], since: int
    ) -> Iterator[tuple[PastPayment, list[str] | None]]:
        """Make a wallet's payments again, in their order, and yield those since a time in Unix milliseconds.

        Beside each stands the log of its refusal; None when it passes. Raises ReplayError.
        """
        self._at(past[0].timestamp // 1000)
        vault, policy, counter = self._create_vault(wallet_id), self._as_it_was, 0
        refunds: list[tuple[int, int, OpenEscrow, int]] = []
        for payment in past:
            moment, payee = payment.timestamp // 1000, Pubkey.from_string(payment.recipient_address)
            while refunds and refunds[0][0] <= moment:
                self._refund(*heapq.heappop(refunds))
            self._at(moment)
            if payment.timestamp >= since and policy == self._as_it_was:
                policy = self._as_it_would_be
                self._switch(vault)
            # An escrow is charged like a payment; only one that gave something back later has to be one.
            if payment.settled_at is None or payment.released == payment.amount:
                refusal = self._try(self._payment(vault, policy, payee, payment))
            else:
                refusal = self._try(self._escrow(vault, policy, payee, payment, counter))
                if refusal is None:
                    escrow = OpenEscrow(self._addresses.escrow(vault, counter), vault, payee, self._payer)
                    self._dispute(escrow)
                    heapq.heappush(refunds, (payment.settled_at, counter, escrow, payment.released or 0))
                    counter += 1
            if payment.timestamp >= since:
                yield payment, refusal

    def _create_policy(self, key: bytes, rules: Rules) -> Pubkey:
        self._do(self._build.create_policy(payer=self._payer, authority=self._authority, key=key, rules=rules))
        return self._addresses.policy(self._org, key)

    def _write_list(self, terms: Terms) -> Pubkey:
        policy, build = self._as_it_would_be, self._build
        for write in writes(build, policy, 1, list(terms.entries), payer=self._payer, authority=self._authority):
            self._do(write)
        written = self._addresses.allowlist(policy, 1)
        self._do(
            build.update_policy(
                authority=self._authority, policy=policy, expected_version=1, rules=terms.rules, new_allowlist=written
            )
        )
        return written

    def _create_vault(self, wallet_id: str) -> Pubkey:
        # The address is another than the wallet's own: nobody pays himself, so it makes no difference.
        build = self._build
        session = (self._session, _FOREVER)
        self._do(
            build.create_wallet(
                payer=self._payer,
                operator=self._operator,
                agent_id=wallet_id,
                policy=self._as_it_was,
                session=session,
            )
        )
        vault = self._addresses.vault(self._org, wallet_id)
        self._set_tokens(vault, vault, _PLENTY)
        return vault

    def _switch(self, vault: Pubkey) -> None:
        self._do(
            self._build.update_wallet(
                operator=self._operator, vault=vault, policy=self._as_it_was, new_policy=self._as_it_would_be
            )
        )

    def _set_tokens(self, owner: Pubkey, like: Pubkey, amount: int) -> None:
        """Give an address a token account of this amount, made like another's."""
        account = self._svm.get_account(self._addresses.token_account(like))
        assert account is not None
        data = bytearray(account.data)
        data[_OWNER], data[_AMOUNT] = bytes(owner), amount.to_bytes(8, "little")
        self._put(self._addresses.token_account(owner), account.owner, bytes(data), account.lamports)

    def _spending(self, vault: Pubkey, policy: Pubkey, payee: Pubkey, payment: PastPayment) -> dict[str, Any]:
        """Return the accounts of an instruction that spends, with those who signed or approved then."""
        if payee not in self._payees:
            self._set_tokens(payee, vault, 0)
            self._payees.add(payee)
        judged = policy == self._as_it_would_be
        co_signed = payment.policy_triggered and payment.status == "confirmed"
        return {
            "signer": self._session if payment.attestation_hash else self._operator,
            "policy": policy,
            "vault": vault,
            "allowlist": self._list if judged else None,
            "recipient": self._addresses.recipient(self._org, payee) if judged and self._consulted else None,
            "co_signer": self._operator if co_signed else None,
        }

    def _payment(self, vault: Pubkey, policy: Pubkey, payee: Pubkey, payment: PastPayment) -> Instruction:
        accounts = self._spending(vault, policy, payee, payment)
        return self._build.execute_payment(
            **accounts,
            destination=self._addresses.token_account(payee),
            amount=payment.amount,
            reference=new_reference(),
        )

    def _escrow(self, vault: Pubkey, policy: Pubkey, payee: Pubkey, payment: PastPayment, counter: int) -> Instruction:
        accounts = self._spending(vault, policy, payee, payment)
        return self._build.create_escrow(
            **accounts,
            payer=self._payer,
            receiver=payee,
            counter=counter,
            amount=payment.amount,
            reference=new_reference(),
            task_hash=_ANY_HASH,
            proof_kinds=_ANY_PROOF,
            timeout=MAX_TIMEOUT,
        )

    def _dispute(self, escrow: OpenEscrow) -> None:
        """Have the arbiter decide: so everything can be refunded, in parts too, whatever the reason was then."""
        hashes = {"reason_hash": _ANY_HASH, "evidence_hash": _ANY_HASH}
        self._do(self._build.dispute_escrow(escrow, signer=self._operator, **hashes))

    def _refund(self, moment: int, _counter: int, escrow: OpenEscrow, released: int) -> None:
        self._at(moment)
        self._do(self._build.resolve_dispute(escrow, payer=self._payer, arbiter=self._arbiter, released=released))

    def _at(self, second: int) -> None:
        clock = self._svm.get_clock()
        clock.unix_timestamp = second
        self._svm.set_clock(clock)

    def _put(self, address: Pubkey, owner: Pubkey, data: bytes, lamports: int) -> None:
        self._svm.set_account(address, Account(lamports, data, owner))

    def _do(self, instruction: Instruction) -> None:
        refusal = self._try(instruction)
        if refusal is not None:
            raise ReplayError(f"a rule refuses what no rule judges: {refusal}")

    def _try(self, instruction: Instruction) -> list[str] | None:
        """Run an instruction and return the log of its refusal by a rule; None when it passes."""
        message = Message.new_with_blockhash([_UNITS, instruction], self._payer, Hash.default())
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self._svm.send_transaction(Transaction.populate(message, signatures))
        if not isinstance(result, FailedTransactionMetadata):
            return None
        logs = result.meta().logs()
        if policy_violation(logs, self._codec) is None:
            raise ReplayError(f"{result.err()}: {logs}")
        return logs
