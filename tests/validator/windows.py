"""Vaults with a past for the validator's genesis: created and charged in a VM at earlier times."""

from collections.abc import Mapping
from dataclasses import dataclass

from solders.account import Account
from solders.pubkey import Pubkey

from app.chain.rules import Rules
from tests.support.vm import Vm
from tests.support.vm_world import Payee, VmWorld
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node

MINUTE, HOUR, DAY = 60, 3_600, 86_400
_BEFORE = 70 * DAY
"""Seconds before now at which the organisations were created."""
_LONGEST_RUN = 30


@dataclass(frozen=True)
class Past:
    """What a vault under `rules` has `paid`, as pairs of seconds before now and amount, and what it can pay `now`.

    `now` lists payments made one after the other, each with the error that refuses it, or `None`.
    """

    rules: Rules
    paid: tuple[tuple[int, int], ...]
    now: tuple[tuple[int, str | None], ...]


DAYS, HOURS, MONTHS = Rules(max_per_day=100), Rules(velocity_cap=2), Rules(max_per_month=100)
DAY_FULL, HOUR_FULL, MONTH_FULL = "MaxPerDayExceeded", "VelocityCapExceeded", "MaxPerMonthExceeded"
CASES = {
    # A quarter of an hour counts until all of it is older than 24 hours, a minute until all of it is older than one.
    "day: 23 hours ago counts": Past(DAYS, ((23 * HOUR, 100),), ((1, DAY_FULL),)),
    "day: 25 hours ago does not": Past(DAYS, ((25 * HOUR, 100),), ((101, DAY_FULL), (100, None), (1, DAY_FULL))),
    "day: what is live counts alone": Past(
        DAYS, ((25 * HOUR, 60), (23 * HOUR, 10), (HOUR, 20)), ((71, DAY_FULL), (70, None), (1, DAY_FULL))
    ),
    "day: longer ago than the ring is": Past(DAYS, ((60 * HOUR, 100),), ((101, DAY_FULL), (100, None), (1, DAY_FULL))),
    "hour: 5 minutes ago counts": Past(HOURS, ((5 * MINUTE, 1), (5 * MINUTE, 1)), ((1, HOUR_FULL),)),
    "hour: 62 minutes ago does not": Past(
        HOURS, ((62 * MINUTE, 1), (62 * MINUTE, 1)), ((1, None), (1, None), (1, HOUR_FULL))
    ),
    "hour: what is live counts alone": Past(HOURS, ((62 * MINUTE, 1), (MINUTE, 1)), ((1, None), (1, HOUR_FULL))),
    "month: now counts": Past(MONTHS, ((0, 60),), ((41, MONTH_FULL), (40, None), (1, MONTH_FULL))),
    "month: a month ago does not": Past(MONTHS, ((32 * DAY, 100),), ((101, MONTH_FULL), (100, None), (1, MONTH_FULL))),
}


@dataclass(frozen=True)
class Windows:
    """The organisations with a past, the vaults of each case, and what is needed to use them on a validator."""

    world: VmWorld
    limited: VmWorld
    """Its operator can move 100 micro-USDC a day into vaults: it moved 60 of them 25 hours ago and 30 an hour ago."""
    payee: Payee
    vaults: Mapping[str, Pubkey]
    limited_vault: Pubkey
    leaving: Mapping[int, Pubkey]
    """Vaults that have made the one payment allowed in an hour, by the second from which they can pay again."""

    def accounts(self) -> dict[Pubkey, Account]:
        """Return every account except programs and the VM's own."""
        state = self.world.vm.state()
        return {address: Account(one[0], one[1], one[2]) for address, one in state.items() if one is not None}

    def move_to(self, node: Node) -> ValidatorVm:
        """Move the organisations to a validator that has the accounts."""
        vm = self.world.vm
        self.world.vm = self.limited.vm = chain = ValidatorVm(node, vm._keys, vm._known)
        return chain


def make(now: int) -> Windows:
    """Create the vaults of every case, as of the Unix time `now`."""
    vm = Vm()
    vm.now = now - _BEFORE
    world = VmWorld(vm, org_id="past")
    limited = VmWorld(vm, org_id="limited past", mint=world.mint)
    payee, limited_vault = world.payee(), limited.wallet(funds=0)
    vaults = {name: world.wallet(past.rules) for name, past in CASES.items()}
    policy = world.policy(Rules(velocity_cap=1))
    first = now // MINUTE * MINUTE + MINUTE
    leaving = {first + MINUTE * later: world.wallet(policy) for later in range(_LONGEST_RUN)}
    payments = [
        (now - ago, world.payment(vaults[name], payee, amount))
        for name, past in CASES.items()
        for ago, amount in past.paid
    ]
    # A minute with a payment leaves the window once all of it is older than an hour.
    payments += [(at - HOUR - MINUTE, world.payment(vault, payee, 1)) for at, vault in leaving.items()]
    payments += [(now - ago, limited.funding(limited_vault, amount)) for ago, amount in ((25 * HOUR, 60), (HOUR, 30))]
    for at, instruction in sorted(payments, key=lambda one: one[0]):
        vm.now = at
        vm.succeed(instruction)
    vm.succeed(limited.org_update(operator_daily_limit=100))
    return Windows(world, limited, payee, vaults, limited_vault, leaving)
