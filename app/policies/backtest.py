"""Replays past payments under other rules in a VM, where the program itself judges them.

The VM holds the built program and the on-chain account of the organisation. Vaults start without history, with more
money than they can spend. Their ledgers then fill as the real ones did: payments before the judged period are charged
under a policy without rules. A payment that the new rules refuse is not charged, so it leaves room for later ones.

The verdict of a rule about recipients depends on their registration, and the VM only has the current registrations. If
a change leaves such a rule as it was, the payment's original outcome counts and only the other rules are judged.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from app.chain.rules import BUDGET_RULES, CATEGORIES, Rules
from app.core.identifiers import new_reference
from app.policies.allowlists import writes
from app.policies.terms import Terms
from app.store.policy_history import PastPayment
from idl.codec import Codec

_UNITS = compute_unit_limit(MAX_UNITS)
_LAMPORTS = 10**17
#: Micro-USDC of each vault.
_BALANCE = 2**62
_FOREVER = 2**62
#: Byte ranges of owner and amount in a token account, the same for the SPL token program and Token-2022.
_OWNER, _AMOUNT = slice(32, 64), slice(64, 72)
_OLD_KEY, _NEW_KEY = b"as it was".ljust(16), b"as it would be".ljust(16)
#: Keys of policies without a rule about recipients and without those that the program checks before it, by the name of
#: the rule. The program checks the rules in this order.
_LAX_KEYS = {"allowed_recipients": b"without a list".ljust(16), "blocked_categories": b"any recipient".ljust(16)}
_ANY_HASH = bytes(32)
_ANY_PROOF = 1
#: Timeout of replayed escrows in seconds. Any value works, because every escrow is disputed immediately.
_TIMEOUT = 86_400


class BacktestError(Exception):
    """The VM refused an instruction that prepares the replay, or refused a payment for a reason other than a rule."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The initial state of the VM: the program, and the on-chain accounts of organisation, mint and recipients.

    ``current`` are the policy's terms before the change.
    """

    program: Path
    codec: Codec
    addresses: Addresses
    org: Pubkey
    accounts: Mapping[Pubkey, RawAccount]
    current: Terms


class PolicyBacktest:
    """A VM that judges payments under given terms of a policy. Use it only in the thread that created it."""

    def __init__(self, snapshot: Snapshot, terms: Terms, start: int) -> None:
        """Set the clock to the Unix second ``start``."""
        self._codec, self._addresses, self._org = snapshot.codec, snapshot.addresses, snapshot.org
        # Nothing is signed here: the signatures were checked when the payments were made.
        self._svm = LiteSVM().with_sigverify(False).with_transaction_history(0).with_blockhash_check(False)
        self._svm.add_program_from_file(snapshot.codec.program_id, snapshot.program)
        for address, account in snapshot.accounts.items():
            self._put(address, account.owner, account.data, account.lamports)
        org = snapshot.accounts[snapshot.org].decode(snapshot.codec).data
        self._authority, self._operator, self._arbiter = org["authority"], org["operator"], org["arbiter"]
        self._payer, self._session = Pubkey.new_unique(), Pubkey.new_unique()
        self._put(self._payer, SYSTEM_PROGRAM, b"", _LAMPORTS)
        self._build = Instructions(snapshot.codec, snapshot.addresses, snapshot.org)
        self._set_time(start)
        if org["paused"]:
            resume = self._build.update_org(
                signer=self._authority, expected_sequence=org["authority_sequence"], paused=False
            )
            self._do(resume)
        self._old, self._new = self._create_policy(_OLD_KEY, Rules()), self._create_policy(_NEW_KEY, terms.rules)
        listless = replace(terms.rules, restricted=False)
        lax = {"allowed_recipients": listless, "blocked_categories": replace(listless, blocked_categories=0)}
        self._lax = {rule: self._create_policy(_LAX_KEYS[rule], rules) for rule, rules in lax.items()}
        current = snapshot.current
        same_entries = current.entries.keys() == terms.entries.keys()
        self._same_list = same_entries and current.rules.restricted == terms.rules.restricted
        self._still_blocked = current.rules.blocked_categories & terms.rules.blocked_categories
        self._needs_recipient = bool(terms.rules.restricted or terms.rules.blocked_categories)
        self._allowlist = self._write_allowlist(terms) if terms.entries else None
        self._payees: set[Pubkey] = set()

    def judge(
        self, wallet_id: str, past: Sequence[PastPayment], since: int
    ) -> Iterator[tuple[PastPayment, list[str] | None]]:
        """Replay a wallet's payments in order and yield those made since a time in Unix milliseconds.

        Each payment comes with the log of its refusal, or None if it passes. The log is empty for a payment that stays
        refused because a budget or an unchanged rule about recipients refused it. Raises BacktestError.
        """
        self._set_time(past[0].timestamp // 1000)
        vault, policy, counter = self._create_vault(wallet_id), self._old, 0
        refunds: list[tuple[int, int, OpenEscrow, int]] = []
        for payment in past:
            now, payee = payment.timestamp // 1000, Pubkey.from_string(payment.recipient_address)
            while refunds and refunds[0][0] <= now:
                self._refund(*heapq.heappop(refunds))
            self._set_time(now)
            if payment.timestamp >= since and policy == self._old:
                policy = self._attach(vault, policy, self._new)
            if self._stays_refused(payment):
                yield payment, []
                continue
            # An escrow is charged like a payment. Only an escrow that later refunded something must be replayed as an
            # escrow.
            ended = None if payment.released == payment.amount else payment.settled_at
            number = None if ended is None else counter
            refusal = self._try(self._spending(vault, policy, payee, payment, number))
            while refusal is not None and (lax := self._excused(payment, refusal)) is not None:
                policy = self._attach(vault, policy, lax)
                refusal = self._try(self._spending(vault, policy, payee, payment, number))
            if policy in self._lax.values():
                policy = self._attach(vault, policy, self._new)
            if ended is not None and refusal is None:
                escrow = OpenEscrow(self._addresses.escrow(vault, counter), vault, payee, self._payer)
                self._dispute(escrow)
                heapq.heappush(refunds, (ended, counter, escrow, payment.released or 0))
                counter += 1
            if payment.timestamp >= since:
                yield payment, refusal

    def _attach(self, vault: Pubkey, policy: Pubkey, new: Pubkey) -> Pubkey:
        """Attach another policy to a vault and return that policy."""
        move = self._build.update_wallet(
            operator=self._operator, vault=vault, policy=policy, new_policy=new, authority=self._authority
        )
        self._do(move)
        return new

    def _stays_refused(self, payment: PastPayment) -> bool:
        """Return True if a budget refused the payment, or a rule about recipients that the change does not touch."""
        if payment.status != "blocked" or payment.violation is None:
            return False
        rule, attempted = payment.violation["rule"], payment.violation["attempted"]
        if rule in BUDGET_RULES:
            return True
        if rule == "blocked_categories":
            return attempted in CATEGORIES and self._is_still_blocked(CATEGORIES.index(attempted))
        return bool(rule == "allowed_recipients" and self._same_list)

    def _excused(self, payment: PastPayment, refusal: Sequence[str]) -> Pubkey | None:
        """Return the policy to try next if an unchanged rule about recipients refuses a confirmed payment."""
        found = policy_violation(refusal, self._codec)
        if found is None or payment.status != "confirmed":
            return None
        unchanged = (found.rule_name == "allowed_recipients" and self._same_list) or (
            found.rule_name == "blocked_categories" and self._is_still_blocked(found.attempted)
        )
        return self._lax[found.rule_name] if unchanged else None

    def _is_still_blocked(self, category: int) -> bool:
        return bool(self._still_blocked & (1 << category))

    def _create_policy(self, key: bytes, rules: Rules) -> Pubkey:
        # The number of open escrows is not replayed, so it is not judged either.
        rules = replace(rules, max_open_escrows=None)
        self._do(self._build.create_policy(payer=self._payer, authority=self._authority, key=key, rules=rules))
        return self._addresses.policy(self._org, key)

    def _write_allowlist(self, terms: Terms) -> Pubkey:
        build, policy, authority, entries = self._build, self._new, self._authority, list(terms.entries)
        account = self._svm.get_account(policy)
        assert account is not None
        made = self._codec.decode_account(account.data).data
        version = made["next_allowlist_version"]
        for write in writes(build, policy, version, entries, payer=self._payer, writer=authority):
            self._do(write)
        allowlist = self._addresses.allowlist(policy, version)
        switch = build.update_policy(
            authority=authority,
            policy=policy,
            expected_version=made["version"],
            rules=replace(terms.rules, max_open_escrows=None),
            new_allowlist=allowlist,
            entries=entries,
        )
        self._do(switch)
        return allowlist

    def _create_vault(self, wallet_id: str) -> Pubkey:
        # The vault's address differs from the wallet's own. That changes no verdict, because a wallet cannot pay
        # itself.
        creation = self._build.create_wallet(
            payer=self._payer,
            operator=self._operator,
            agent_id=wallet_id,
            policy=self._old,
            session=(self._session, _FOREVER),
            authority=self._authority,
        )
        self._do(creation)
        vault = self._addresses.vault(self._org, wallet_id)
        self._set_tokens(vault, vault, _BALANCE)
        return vault

    def _set_tokens(self, owner: Pubkey, like: Pubkey, amount: int) -> None:
        """Give an address a token account with this amount, copied from the account of ``like``."""
        account = self._svm.get_account(self._addresses.token_account(like))
        assert account is not None
        data = bytearray(account.data)
        data[_OWNER], data[_AMOUNT] = bytes(owner), amount.to_bytes(8, "little")
        self._put(self._addresses.token_account(owner), account.owner, bytes(data), account.lamports)

    def _spending(
        self, vault: Pubkey, policy: Pubkey, payee: Pubkey, payment: PastPayment, counter: int | None
    ) -> Instruction:
        """Return the payment, or the escrow with this counter, signed and co-signed like the original."""
        if payee not in self._payees:
            self._set_tokens(payee, vault, 0)
            self._payees.add(payee)
        listed, judged = policy == self._new, policy != self._old
        co_signed = payment.policy_triggered and payment.status == "confirmed"
        common: dict[str, Any] = {
            "signer": self._session if payment.attestation_hash else self._operator,
            "policy": policy,
            "vault": vault,
            "allowlist": self._allowlist if listed else None,
            "recipient": self._addresses.recipient(self._org, payee) if judged and self._needs_recipient else None,
            "co_signer": self._operator if co_signed else None,
            "amount": payment.amount,
            "reference": new_reference(),
        }
        if counter is None:
            return self._build.execute_payment(**common, destination=self._addresses.token_account(payee))
        return self._build.create_escrow(
            **common,
            payer=self._payer,
            receiver=payee,
            counter=counter,
            task_hash=_ANY_HASH,
            proof_kinds=_ANY_PROOF,
            timeout=_TIMEOUT,
        )

    def _dispute(self, escrow: OpenEscrow) -> None:
        """Dispute an escrow, so that the arbiter can refund any part of it, regardless of the original reason."""
        hashes = {"reason_hash": _ANY_HASH, "evidence_hash": _ANY_HASH}
        self._do(self._build.dispute_escrow(escrow, signer=self._operator, **hashes))

    def _refund(self, second: int, _counter: int, escrow: OpenEscrow, released: int) -> None:
        self._set_time(second)
        self._do(self._build.resolve_dispute(escrow, payer=self._payer, arbiter=self._arbiter, released=released))

    def _set_time(self, second: int) -> None:
        clock = self._svm.get_clock()
        clock.unix_timestamp = second
        self._svm.set_clock(clock)

    def _put(self, address: Pubkey, owner: Pubkey, data: bytes, lamports: int) -> None:
        self._svm.set_account(address, Account(lamports, data, owner))

    def _do(self, instruction: Instruction) -> None:
        refusal = self._try(instruction)
        if refusal is not None:
            raise BacktestError(f"a rule refused an instruction that it must not judge: {refusal}")

    def _try(self, instruction: Instruction) -> list[str] | None:
        """Run an instruction and return the log of its refusal by a rule, or None if it passes."""
        message = Message.new_with_blockhash([_UNITS, instruction], self._payer, Hash.default())
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self._svm.send_transaction(Transaction.populate(message, signatures))
        if not isinstance(result, FailedTransactionMetadata):
            return None
        logs = result.meta().logs()
        if policy_violation(logs, self._codec) is None:
            raise BacktestError(f"{result.err()}: {logs}")
        return logs
