"""Replays past payments under other rules in a VM, where the program itself judges them.

The VM holds the built program and the on-chain account of the organisation. Vaults start without history, with more
money than they can spend. Their ledgers then fill as the real ones did: payments before the judged period are charged
under a policy without rules. A payment that the new rules refuse is not charged, so it leaves room for later ones. An
allowance is granted and settled as it was: its amount is held in between, and the spent part counts from then on.

The verdict of a rule about recipients depends on their registration, and the VM only has the current registrations. If
a change leaves such a rule as it was, the payment's original outcome counts and only the other rules are judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from app.chain.instructions import Instructions
from app.chain.logs import policy_violation
from app.chain.records import RawAccount
from app.chain.rules import BUDGET_RULES, CATEGORIES, Rules
from app.core.identifiers import new_reference
from app.policies.allowlists import writes
from app.policies.replay_vm import ReplayVm
from app.policies.replayed_vault import ReplayedVault, Stage
from app.policies.terms import Terms
from app.store.policy_history import PastPayment
from idl.codec import Codec

#: Micro-USDC of each vault.
_BALANCE = 2**62
_FOREVER = 2**62
_OLD_KEY, _NEW_KEY = b"as it was".ljust(16), b"as it would be".ljust(16)
#: Keys of lax policies, by the name of a rule about recipients. Each policy lacks this rule, and the rules about
#: recipients that the program checks earlier. The program checks the rules in the order of the keys.
_LAX_KEYS = {"allowed_recipients": b"without a list".ljust(16), "blocked_categories": b"any recipient".ljust(16)}


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
        """Create the policies in a new VM, and set its clock to the Unix second ``start``."""
        self._codec, self._addresses, self._org = snapshot.codec, snapshot.addresses, snapshot.org
        self._vm = vm = ReplayVm(snapshot.program, snapshot.codec, snapshot.addresses, snapshot.accounts)
        org = snapshot.accounts[snapshot.org].decode(snapshot.codec).data
        self._build = Instructions(snapshot.codec, snapshot.addresses, snapshot.org)
        roles = org["authority"], org["operator"], org["arbiter"]
        self._stage = Stage(vm, self._build, snapshot.addresses, *roles, org["decimals"])
        self._session = Pubkey.new_unique()
        vm.set_time(start)
        self._sequence: int = org["authority_sequence"]
        if org["paused"]:
            authority = self._stage.authority
            vm.do(self._build.update_org(signer=authority, expected_sequence=self._sequence, paused=False))
            self._sequence += 1
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
        policies = (self._old, self._new, *self._lax.values())
        self._versions: dict[Pubkey, int] = {one: vm.state(one)["version"] for one in policies}
        self._payees: set[Pubkey] = set()

    def judge(
        self, wallet_id: str, past: Sequence[PastPayment], since: int
    ) -> Iterator[tuple[PastPayment, Sequence[str] | None]]:
        """Replay a wallet's payments in order and yield those made since a time in Unix milliseconds.

        Each payment comes with the log of its refusal, or None if it passes. The log is empty for a payment that stays
        refused because a budget or an unchanged rule about recipients refused it. Raises BacktestError.
        """
        self._vm.set_time(past[0].timestamp // 1000)
        replayed = self._create_vault(wallet_id)
        for payment in past:
            now = payment.timestamp // 1000
            replayed.settle_until(now)
            if payment.timestamp >= since and replayed.policy == self._old:
                self._attach(replayed, self._new)
            if self._stays_refused(payment):
                yield payment, []
                continue
            refusal = self._spend(replayed, payment, now)
            while refusal is not None and (lax := self._excused(payment, refusal)) is not None:
                self._attach(replayed, lax)
                refusal = self._spend(replayed, payment, now)
            if replayed.policy in self._lax.values():
                self._attach(replayed, self._new)
            if payment.timestamp >= since:
                yield payment, refusal

    def _attach(self, replayed: ReplayedVault, policy: Pubkey) -> None:
        replayed.attach(policy, self._versions[policy])

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
        create = self._build.create_policy(
            payer=self._vm.payer,
            authority=self._stage.authority,
            key=key,
            rules=_replayed(rules),
            expected_sequence=self._sequence,
        )
        self._vm.do(create)
        return self._addresses.policy(self._org, key)

    def _write_allowlist(self, terms: Terms) -> Pubkey:
        build, policy, authority, entries = self._build, self._new, self._stage.authority, list(terms.entries)
        made = self._vm.state(policy)
        version = made["next_allowlist_version"]
        for write in writes(build, policy, version, entries, payer=self._vm.payer, writer=authority):
            self._vm.do(write)
        allowlist = self._addresses.allowlist(policy, version)
        switch = build.update_policy(
            authority=authority,
            policy=policy,
            expected_version=made["version"],
            rules=_replayed(terms.rules),
            new_allowlist=allowlist,
            entries=entries,
        )
        self._vm.do(switch)
        return allowlist

    def _create_vault(self, wallet_id: str) -> ReplayedVault:
        # The vault's address differs from the wallet's own. That changes no verdict, because a wallet cannot pay
        # itself.
        creation = self._build.create_wallet(
            payer=self._vm.payer,
            operator=self._stage.operator,
            agent_id=wallet_id,
            policy=self._old,
            policy_version=self._versions[self._old],
            session=(self._session, _FOREVER),
            authority=self._stage.authority,
        )
        self._vm.do(creation)
        vault = self._addresses.vault(self._org, wallet_id)
        self._vm.set_tokens(vault, vault, _BALANCE)
        return ReplayedVault(self._stage, vault, self._old)

    def _spend(self, replayed: ReplayedVault, payment: PastPayment, now: int) -> Sequence[str] | None:
        """Make the payment, escrow or allowance, signed and co-signed like the original.

        Returns the log of its refusal by a rule, or None if it passes.
        """
        policy, payee = replayed.policy, Pubkey.from_string(payment.recipient_address)
        if payee not in self._payees:
            self._vm.set_tokens(payee, replayed.vault, 0)
            self._payees.add(payee)
        judged = policy != self._old
        common: dict[str, Any] = {
            "signer": self._session if payment.attestation_hash else self._stage.operator,
            "policy": policy,
            "vault": replayed.vault,
            "allowlist": self._allowlist if policy == self._new else None,
            "recipient": self._addresses.recipient(self._org, payee) if judged and self._needs_recipient else None,
            "amount": payment.amount,
            "reference": new_reference(),
        }
        co_signed = payment.policy_triggered and payment.status == "confirmed"
        if payment.allowance:
            return replayed.grant(payment, common, now, approved_at=self._versions[policy] if co_signed else None)
        common["co_signer"] = self._stage.operator if co_signed else None
        # An escrow is charged like a payment. Only an escrow that later refunded something must be replayed as an
        # escrow.
        refunded = payment.settled_at is not None and payment.released != payment.amount
        return replayed.lock(payment, common) if refunded else replayed.pay(payment, common)


def _replayed(rules: Rules) -> Rules:
    """Return the rules without a limit on open escrows, and with the permission for allowances.

    The replay cannot judge these two settings: it does not lock every escrow, and the permission is not a rule.
    """
    return replace(rules, max_open_escrows=None, allow_allowances=True)
