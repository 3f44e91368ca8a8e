"""Runs sequences of escrows and allowances in the VM: all share one organisation, and each gets two new vaults."""

from collections import Counter
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from tests.program.escrow_sequences.model import Account, Granted, Locked
from tests.program.escrow_sequences.steps import (
    FORGED,
    OUTSIDER,
    VAULTS,
    Again,
    Clock,
    Complete,
    Create,
    Delegated,
    Dispute,
    Donate,
    EscrowSequence,
    Fund,
    Grant,
    Move,
    Pay,
    Reclaim,
    Refund,
    Resolve,
    Ripening,
    Withdraw,
)
from tests.program.sequences.steps import EARLIEST, next_month
from tests.support import vm_allowances
from tests.support.vm import Receipt, Vm
from tests.support.vm_escrows import (
    OUTPUT_HASH,
    SIGNED_ATTESTATION,
    Worker,
    attested,
    completion,
    creation,
    decision,
    dispute,
    is_gone,
    next_escrow,
    worker,
)
from tests.support.vm_tokens import place_token_account
from tests.support.vm_world import Payee, VmWorld

FUNDS = 1_500
"""Micro-USDC with which a vault starts."""
GIFTS = 10**12
MAX_OPEN = 64
DAY_RING, HOUR_RING = (97, 900), (61, 60)
GONE = "AccountDataTooSmall"


@dataclass
class Open:
    """An escrow in the VM, and in the model."""

    at: OpenEscrow
    model: Locked
    vault: int
    receiver: int


@dataclass
class Outstanding:
    """An allowance in the VM, and in the model."""

    at: OpenAllowance
    model: Granted
    vault: int
    receiver: int


class EscrowRunner:
    """The organisation. Signatures of proofs are checked, those of transactions are not."""

    def __init__(self) -> None:
        self.world = VmWorld(Vm(checks_signatures=False))
        self.world.vm.now = EARLIEST
        self.policies = [self.world.policy() for _ in range(VAULTS)]
        self.outsider, self.delegate = self.world.vm.key(), self.world.vm.key()
        self.payee = self.world.payee(self.outsider)
        self.donor = place_token_account(self.world.vm, self.world.mint, self.world.stranger, GIFTS)
        self.moves: Counter[str] = Counter()
        """How often each instruction of escrows and allowances was tried, and how escrows ended."""

    def run(self, sequence: EscrowSequence) -> None:
        """Run a sequence along with the model. Raises `AssertionError` when they differ or a promise is broken."""
        Course(self, sequence).run()


class Course:
    """One sequence: the two vaults, and the escrows between them."""

    def __init__(self, runner: EscrowRunner, sequence: EscrowSequence) -> None:
        self.runner, self.world, self.vm = runner, runner.world, runner.world.vm
        self.sequence, self.clock = sequence, sequence.start
        for policy, rules in zip(runner.policies, sequence.rules, strict=True):
            self.world.update_policy(policy, rules)
        self.vaults: list[Worker] = [worker(self.world, policy, FUNDS) for policy in runner.policies]
        self.accounts = [Account(rules, FUNDS) for rules in sequence.rules]
        self.open: list[Open] = []
        self.settled: list[Open] = []
        self.outstanding: list[Outstanding] = []
        self.owners = [*(one.vault for one in self.vaults), runner.outsider]
        self.money = self.total()

    def run(self) -> None:
        """Take every step, and check everything after each."""
        for clock, move in self.sequence.steps:
            self.clock = self.after(clock)
            self.vm.now = self.clock
            self.take(move)
            self.check()

    def after(self, step: Clock) -> int:
        """Return the clock after this step."""
        if isinstance(step, Ripening):
            return self.picked(step.pick).model.ripe_at + step.nudge if self.open else self.clock
        paid = sorted(spent.time for account in self.accounts for spent in account.spent)
        return max(step.from_time(self.clock, paid), 0)

    def picked(self, pick: int) -> Open:
        """Return one of the open escrows."""
        return self.open[-1 - pick % len(self.open)]

    def take(self, move: Move) -> None:
        """Perform a step, unless it acts on an escrow and there is none."""
        match move:
            case Pay() | Create():
                self.spend(move)
            case Fund():
                self.vm.succeed(self.world.funding(self.vaults[move.vault].vault, move.amount))
                self.accounts[move.vault].balance += move.amount
            case Grant():
                self.grant(move)
            case Delegated() | Reclaim():
                if self.outstanding:
                    self.use(self.outstanding[-1 - move.pick % len(self.outstanding)], move)
            case Again():
                if self.settled:
                    self.again(self.settled[move.pick % len(self.settled)])
            case _:
                if self.open:
                    self.act(self.picked(move.pick), move)

    def spend(self, move: Pay | Create) -> None:
        """Pay, or create an escrow."""
        world, vault, account = self.world, self.vaults[move.vault], self.accounts[move.vault]
        receiver = OUTSIDER if move.receiver == move.vault else move.receiver
        owner = self.owners[receiver]
        escrow = next_escrow(world, vault.vault, owner)
        if isinstance(move, Pay):
            payee = Payee(owner, world.tokens_of(owner))
            instruction = world.payment(vault.vault, payee, move.amount, signer=vault.key)
        else:
            self.runner.moves["create"] += 1
            instruction = creation(world, vault.vault, owner, move.amount, signer=vault.key, timeout=move.timeout)
        result = self.vm.send(instruction)
        if result.violation is not None:
            account.refused(move.amount, self.clock, result.violation)
            return
        full = isinstance(move, Create) and self.count_open(move.vault) == MAX_OPEN
        expected = "TooManyEscrows" if full else "InsufficientBalance" if move.amount > account.balance else None
        assert result.error == expected
        if expected:
            return
        spent = account.spend(move.amount, self.clock)
        if isinstance(move, Pay):
            self.receive(receiver, move.amount)
        else:
            account.escrows += 1
            locked = Locked(account, move.amount, spent.time + move.timeout, spent)
            self.open.append(Open(escrow, locked, move.vault, receiver))

    def grant(self, move: Grant) -> None:
        """Grant an allowance."""
        world, vault, account = self.world, self.vaults[move.vault], self.accounts[move.vault]
        receiver = OUTSIDER if move.receiver == move.vault else move.receiver
        owner, expires_at = self.owners[receiver], account.time(self.clock) + move.seconds
        payee, delegate = Payee(owner, world.tokens_of(owner)), self.runner.delegate
        allowance = vm_allowances.next_allowance(world, vault.vault)
        options = {"signer": vault.key, "expires_at": expires_at}
        self.runner.moves["grant"] += 1
        result = self.vm.send(vm_allowances.granting(world, vault.vault, payee, delegate, move.amount, **options))
        if self.count_outstanding(move.vault) == vm_allowances.MOST:
            assert result.error == "TooManyAllowances"
            return
        if result.violation is not None:
            account.refused(move.amount, self.clock, result.violation)
            return
        expected = "InsufficientBalance" if move.amount > account.balance else None
        assert result.error == expected
        if expected:
            return
        account.allowances += 1
        account.spend(move.amount, self.clock, held=True)
        granted = Granted(account, move.amount, expires_at, move.amount)
        self.outstanding.append(Outstanding(allowance, granted, move.vault, receiver))

    def use(self, allowance: Outstanding, move: Delegated | Reclaim) -> None:
        """Transfer as the delegate, or settle, and compare the result with the model's."""
        world, model, delegate = self.world, allowance.model, self.runner.delegate
        tokens = vm_allowances.tokens_of(world, allowance.at)
        if isinstance(move, Delegated):
            amount = model.left * move.percent // 100
            destination = world.tokens_of(self.owners[allowance.receiver])
            transfer = vm_allowances.transfer(world, tokens, destination, delegate, amount)
            # Whether or not its time has passed
            if model.left:
                self.tried("delegated", transfer, None)
                model.left -= amount
                self.receive(allowance.receiver, amount)
            return
        expected = model.settle(self.clock, signed=move.signed)
        signer = world.operator if move.signed else None
        gift = self.gift(tokens, move.gift)
        result = self.tried("settle", vm_allowances.settling(world, allowance.at, signer=signer), expected, gift)
        if expected is not None:
            return
        model.settled(move.gift, self.clock)
        data, left = result.event.data, model.left
        assert (data["spent"], data["swept"]) == (model.amount - left, left + move.gift)
        assert (data["vault_balance"], data["delegate_missing"]) == (model.vault.balance, int(left == 0))
        assert vm_allowances.is_gone(world, allowance.at)
        self.outstanding.remove(allowance)

    def count_outstanding(self, vault: int) -> int:
        """Return how many allowances a vault has outstanding."""
        return sum(one.vault == vault for one in self.outstanding)

    def count_open(self, vault: int) -> int:
        """Return how many escrows a vault has open."""
        return sum(one.vault == vault for one in self.open)

    def act(self, escrow: Open, move: Complete | Dispute | Withdraw | Resolve | Refund | Donate) -> None:
        """Act on an open escrow, and compare the result with the model's."""
        world, model = self.world, escrow.model
        match move:
            case Donate(_, amount):
                self.vm.succeed(self.gift(world.addresses.escrow_tokens(escrow.at.address), amount))
                model.gift += amount
            case Dispute(_, receiver):
                side = escrow.receiver if receiver else escrow.vault
                expected = model.dispute(side, self.clock)
                self.tried("dispute", dispute(world, escrow.at, self.key(side)), expected)
            case Withdraw(_, receiver):
                side = escrow.receiver if receiver else escrow.vault
                expected = model.withdraw(side, self.clock)
                withdrawal = world.build.withdraw_dispute(escrow.at, signer=self.key(side))
                self.tried("withdraw", withdrawal, expected)
            case Complete(_, kind):
                self.settle("complete", escrow, model.complete(kind, self.clock), *self.proof(escrow, kind))
            case Resolve(_, percent):
                released = model.amount * percent // 100 + (percent > 100)
                instruction = decision(world, escrow.at, released)
                self.settle("resolve", escrow, model.resolve(released), instruction)
            case Refund():
                self.settle("refund", escrow, model.refund(self.clock), world.build.refund_escrow(escrow.at))

    def key(self, side: int) -> Pubkey:
        """Return the key that speaks for a vault or for the outsider."""
        return self.runner.outsider if side == OUTSIDER else self.vaults[side].key

    def proof(self, escrow: Open, kind: int) -> list[Instruction]:
        """Return a completion, preceded by what must come before it."""
        world = self.world
        receiver = self.key(escrow.receiver)
        if kind == OUTPUT_HASH:
            return [completion(world, escrow.at, signer=receiver)]
        key = {SIGNED_ATTESTATION: receiver, FORGED: world.stranger}.get(kind, world.verifier)
        kind = SIGNED_ATTESTATION if kind == FORGED else kind
        return [attested(world, escrow.at, kind, key), completion(world, escrow.at, kind)]

    def tried(self, name: str, instruction: Instruction, expected: str | None, *before: Instruction) -> Receipt:
        """Send an instruction on an escrow, and compare its error."""
        self.runner.moves[name] += 1
        result = self.vm.send(*before, instruction)
        assert result.error == expected, (name, result.error, expected)
        return result

    def settle(self, name: str, escrow: Open, expected: str | tuple[int, int], *instructions: Instruction) -> None:
        """Try to settle an escrow, and compare the event and who was paid."""
        *before, last = instructions
        if isinstance(expected, str):
            self.tried(name, last, expected, *before)
            return
        outcome, released = expected
        result = self.tried(name, last, None, *before)
        model = escrow.model
        model.settle(released)
        self.receive(escrow.receiver, released)
        figures = {
            "outcome": outcome,
            "amount": model.amount,
            "released": released,
            "refunded": model.amount - released,
            "vault_balance": model.vault.balance,
        }
        assert figures.items() <= result.event.data.items()
        assert is_gone(self.world, escrow.at)
        self.open.remove(escrow)
        self.settled.append(escrow)
        self.runner.moves[f"outcome {outcome}"] += 1

    def again(self, escrow: Open) -> None:
        """Try every instruction on a settled escrow."""
        world, at = self.world, escrow.at
        for instruction in (
            completion(world, at, signer=world.operator),
            dispute(world, at, world.operator),
            world.build.withdraw_dispute(at, signer=world.operator),
            decision(world, at, 0),
            world.build.refund_escrow(at),
        ):
            self.tried("again", instruction, GONE)

    def gift(self, tokens: Pubkey, amount: int) -> Instruction:
        """Return a stranger's transfer into the token account of an escrow or an allowance."""
        return vm_allowances.transfer(self.world, self.runner.donor, tokens, self.world.stranger, amount)

    def receive(self, receiver: int, amount: int) -> None:
        """Record that a receiver was paid."""
        if receiver != OUTSIDER:
            self.accounts[receiver].balance += amount

    def total(self) -> int:
        """Return the money in all token accounts."""
        world = self.world
        owners = [*self.owners, world.org]
        apart = [world.addresses.escrow_tokens(one.at.address) for one in self.open]
        apart += [vm_allowances.tokens_of(world, one.at) for one in self.outstanding]
        return sum(map(world.balance, [*map(world.tokens_of, owners), *apart, self.runner.donor]))

    def check(self) -> None:
        """Compare balances, accounts, counters and ledgers with the model."""
        assert self.total() == self.money
        for one in self.open:
            stored = self.world.fields(one.at.address)
            assert stored["disputed_at"] == (one.model.disputed_at or 0)
            assert (stored["deadline"], stored["amount"]) == (one.model.deadline, one.model.amount)
            tokens = self.world.addresses.escrow_tokens(one.at.address)
            assert self.world.balance(tokens) == one.model.amount + one.model.gift
        for number, (vault, account) in enumerate(zip(self.vaults, self.accounts, strict=True)):
            fields = self.world.fields(vault.vault)
            assert self.world.balance(vault.tokens) == account.balance
            assert fields["escrow_counter"] == account.escrows
            assert fields["open_escrows"] == self.count_open(number)
            assert fields["allowance_counter"] == account.allowances
            assert fields["open_allowances"] == self.count_outstanding(number)
            if account.spent:
                check_ledger(fields["ledger"], account)


def check_ledger(ledger: dict[str, object], account: Account) -> None:
    """Check that totals are the sums of their slots, and slots the sums of what was spent and not returned."""
    last = account.spent[-1].time
    # A grant moves only the window of payments.
    money = max((one.time for one in account.spent if not one.held), default=None)
    assert (ledger["last"], ledger["month_ends_at"]) == (last, 0 if money is None else next_month(money))
    assert ledger["held"] == account.held
    assert ledger["month_spent"] == (0 if money is None else account.month(money) - account.held)
    for name, (slots, seconds) in (("day", DAY_RING), ("hour", HOUR_RING)):
        window = ledger[name]
        assert isinstance(window, dict)
        newest = (last if name == "hour" else money or 0) // seconds
        expected = [0] * slots
        for spent in account.spent:
            if newest - spent.time // seconds < slots:
                expected[spent.time // seconds % slots] += spent.amount if name == "day" else spent.payments
        assert (window["newest"], window["slots"], window["total"]) == (newest, expected, sum(expected))
