"""Runs sequences in the VM: all share one organisation with two policies, and each gets a new vault."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from app.chain.logs import LoggedViolation, policy_violation
from app.chain.rules import RULE_ERRORS, Rules
from tests.program.sequences.checker import Checker
from tests.program.sequences.steps import FOUNDED, PAYEES, Edit, Payment, PaymentSequence, Switch
from tests.support.vm import CODEC, PROGRAM_ID, Vm, error_name
from tests.support.vm_tokens import SUPPLY
from tests.support.vm_world import VmWorld

_REFERENCE = 16
_references: Iterator[int] = count()


@dataclass(frozen=True)
class Transcript:
    """A sequence as the native program replays it, and the verdicts of the program in the VM on its payments."""

    script: list[str]
    verdicts: list[str]


class PaymentRunner:
    """The organisation. Signatures are not checked: that takes most of a payment's time and does not matter here."""

    def __init__(self) -> None:
        self.world = VmWorld(Vm(checks_signatures=False))
        world = self.world
        self.payees = [world.payee() for _ in PAYEES]
        world.vm.now = FOUNDED
        for payee, (_, category) in zip(self.payees, PAYEES, strict=True):
            if category:
                world.vm.succeed(world.registration(payee.owner, category))
        listed = [bytes(payee.owner) for payee, (on_list, _) in zip(self.payees, PAYEES, strict=True) if on_list]
        self.restricted = world.policy(Rules(restricted=True), listed)
        self.open = world.policy()

    def run(self, sequence: PaymentSequence) -> Transcript:
        """Run a sequence and let the checker judge it. Raises `AssertionError` when a promise is broken."""
        world, vm = self.world, self.world.vm
        rules = {self.restricted: Rules(restricted=True), self.open: Rules()}
        for policy, drawn in ((self.restricted, sequence.restricted), (self.open, sequence.open)):
            rules[policy] = self._edit(policy, drawn, sequence.start)
        vault = world.wallet(self.open, funds=0)
        tokens = world.tokens_of(vault)
        world.fill(tokens, vault, SUPPLY)
        attached, checker, clock = self.open, Checker(), sequence.start
        payments: dict[tuple[Pubkey, int, bool], Instruction] = {}
        script, verdicts = [_rules_line(rules[attached])], []
        for step in sequence.steps:
            match step:
                case Payment():
                    clock = max(step.jump.from_time(clock, [at for at, _ in checker.paid]), 0)
                    vm.now = clock
                    way = (attached, step.payee, step.co_signed)
                    if way not in payments:
                        payments[way] = self._payment(vault, *way)
                    before = vm.data(vault)
                    violation = judged(vm, with_amount(payments[way], step.amount))
                    if violation is None:
                        checker.accepted(rules[attached], step, clock)
                        verdicts.append("ok")
                    else:
                        checker.refused(rules[attached], step, clock, violation)
                        assert vm.data(vault) == before
                        verdicts.append(f"{violation.rule} {violation.limit} {violation.attempted}")
                    listed, category = PAYEES[step.payee]
                    script.append(f"pay {clock} {step.amount} {listed:d} {category} {step.co_signed:d}")
                case Edit(drawn):
                    rules[attached] = self._edit(attached, drawn, clock)
                    script.append(_rules_line(rules[attached]))
                case Switch():
                    other = self.open if attached == self.restricted else self.restricted
                    vm.succeed(
                        world.build.update_wallet(
                            operator=world.operator, vault=vault, policy=attached, new_policy=other
                        )
                    )
                    attached = other
                    script.append(_rules_line(rules[attached]))
        assert SUPPLY - world.balance(tokens) == sum(amount for _, amount in checker.paid)
        return Transcript(script, verdicts)

    def _edit(self, policy: Pubkey, drawn: Rules, now: int) -> Rules:
        """Give a policy the rules drawn, keeping its restriction and counting the expiry from `now`."""
        expiry = None if drawn.expiry is None else now + drawn.expiry
        rules = replace(drawn, restricted=policy == self.restricted, expiry=expiry)
        self.world.update_policy(policy, rules)
        return rules

    def _payment(self, vault: Pubkey, policy: Pubkey, payee: int, co_signed: bool) -> Instruction:
        world = self.world
        return world.payment(
            vault, self.payees[payee], 1, policy=policy, co_signer=world.operator if co_signed else None
        )


def with_amount(payment: Instruction, amount: int) -> Instruction:
    """Return a payment with the amount and a new reference put into it."""
    data = payment.data[:8] + struct.pack("<Q", amount) + next(_references).to_bytes(_REFERENCE, "little")
    return Instruction(PROGRAM_ID, data, payment.accounts)


def judged(vm: Vm, instruction: Instruction) -> LoggedViolation | None:
    """Send a payment or an escrow; return what refused it."""
    message = Message.new_with_blockhash([instruction], vm.fee_payer, Hash.default())
    vm.watch(message)
    result = vm.svm.send_transaction(Transaction.new_unsigned(message))
    if not isinstance(result, FailedTransactionMetadata):
        return None
    violation = policy_violation(result.meta().logs(), CODEC)
    assert violation is not None, result
    assert error_name(result) == RULE_ERRORS[violation.rule]
    return violation


def _rules_line(rules: Rules) -> str:
    """Return the line that sets the rules in the native program."""
    values = (
        rules.max_per_tx,
        rules.max_per_day,
        rules.max_per_month,
        rules.velocity_cap,
        rules.require_co_sign,
        rules.expiry,
    )
    texts = ["-" if value is None else str(value) for value in values]
    return " ".join(["rules", *texts, str(rules.blocked_categories), str(int(rules.restricted))])
