"""What an escrow charges to a vault's budgets, and what a refund credits: once, to the same slot and month."""

import struct
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.rules import Rules
from tests.support.vm import PROGRAM_ID, START
from tests.support.vm_escrows import (
    AMOUNT,
    DAY,
    HOUR,
    THIRTY_DAYS,
    completion,
    creation,
    decision,
    dispute,
    disputed,
    lock,
    worker,
)
from tests.support.vm_tokens import USDC
from tests.support.vm_world import Payee, VmWorld

SLOT, RING = 900, 97
FEBRUARY = 1_801_440_000
"""date -u -d 2027-02-01 +%s"""
LEDGER = 16 + 6 * 32 + 3 * 8 + 32 + 5 * 8
DAY_TOTAL, DAY_SLOTS = LEDGER + 5 * 8, LEDGER + 6 * 8
"""Offsets in a vault's account."""


def ledger(world: VmWorld, vault: Pubkey) -> dict[str, Any]:
    """Return a vault's ledger after checking that its totals are the sums of their slots."""
    found: dict[str, Any] = world.fields(vault)["ledger"]
    for window in (found["day"], found["hour"]):
        assert window["total"] == sum(window["slots"])
    return found


def budget(world: VmWorld, vault: Pubkey, payee: Payee) -> tuple[int, int]:
    """Return what the daily and the monthly limit still allow."""
    rules = world.check(vault, payee, 1)["rules"]
    return rules[7]["headroom"], rules[8]["headroom"]


@pytest.mark.parametrize("how", ["deadline", "arbiter"])
def test_refund_credits_the_slot_and_month_that_were_charged(world: VmWorld, how: str) -> None:
    vault, payee = world.wallet(Rules(max_per_day=2 * AMOUNT, max_per_month=2 * AMOUNT)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START + SLOT
    escrow = lock(world, vault, payee.owner, timeout=60)
    assert budget(world, vault, payee) == (AMOUNT - 1, AMOUNT - 1)
    if how == "arbiter":
        world.vm.succeed(dispute(world, escrow))
        world.vm.succeed(decision(world, escrow, 0))
    else:
        world.vm.now += 60
        world.vm.succeed(world.build.refund_escrow(escrow))
    after = ledger(world, vault)
    slots = after["day"]["slots"]
    assert (slots[START // SLOT % RING], slots[(START // SLOT + 1) % RING]) == (1, 0)
    assert (after["day"]["total"], after["month_spent"]) == (1, 1)
    assert budget(world, vault, payee) == (2 * AMOUNT - 1,) * 2
    world.vm.succeed(world.payment(vault, payee, 2 * AMOUNT - 1))
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))


def test_refund_does_not_credit_velocity(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(velocity_cap=2)), world.payee()
    escrows = [lock(world, vault, payee.owner, timeout=60) for _ in range(2)]
    world.vm.now = START + 60
    for escrow in escrows:
        world.vm.succeed(world.build.refund_escrow(escrow))
    assert ledger(world, vault)["hour"]["total"] == 2
    world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee))
    world.vm.refuse("VelocityCapExceeded", creation(world, vault, payee.owner))


def test_refund_keeps_the_ledgers_time(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    escrow = lock(world, vault, payee.owner)
    world.vm.now = START + DAY
    world.vm.succeed(world.build.refund_escrow(escrow))
    assert ledger(world, vault)["last"] == START


@pytest.mark.parametrize("slots_later", [1, 95, 96, 97, 98, 194])
def test_refund_credits_the_day_while_its_slot_is_in_the_window(world: VmWorld, slots_later: int) -> None:
    # Given an escrow, and a payment `slots` later
    vault, payee = world.wallet(Rules(max_per_day=2 * AMOUNT)), world.payee()
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.now = START + slots_later * SLOT
    world.vm.succeed(world.payment(vault, payee, 3))
    # When it is refunded
    world.vm.succeed(world.build.refund_escrow(escrow))
    # Then only the payment counts, even if it took the escrow's place in the ring
    after = ledger(world, vault)
    assert after["day"]["total"] == 3
    assert after["day"]["slots"][(START // SLOT + slots_later) % RING] == 3
    assert after["month_spent"] == 3
    assert budget(world, vault, payee)[0] == 2 * AMOUNT - 3


def test_refund_within_the_window_credits_no_other_slot(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=AMOUNT)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 2))
    world.vm.now = START + SLOT
    escrow = lock(world, vault, payee.owner, AMOUNT - 2, timeout=THIRTY_DAYS)
    world.vm.succeed(dispute(world, escrow))
    world.vm.succeed(decision(world, escrow, 0))
    world.vm.succeed(world.payment(vault, payee, AMOUNT - 2))
    # The first slot leaves the window on time, and takes only what was paid in it
    world.vm.now = START + DAY
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
    world.vm.now = START + DAY + SLOT
    world.vm.succeed(world.payment(vault, payee, 2))
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))


@pytest.mark.parametrize("later", [DAY, DAY + SLOT - 1, DAY + SLOT, 3 * DAY])
def test_refund_after_idle_days_never_exceeds_the_budget(world: VmWorld, later: int) -> None:
    vault, payee = world.wallet(Rules(max_per_day=2 * AMOUNT)), world.payee()
    world.vm.succeed(world.payment(vault, payee, AMOUNT))
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.now = START + later
    world.vm.succeed(world.build.refund_escrow(escrow))
    room = AMOUNT if later < DAY + SLOT else 2 * AMOUNT
    assert budget(world, vault, payee)[0] == room
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, room + 1))
    world.vm.succeed(world.payment(vault, payee, room))
    ledger(world, vault)


def test_refund_in_another_month_credits_nothing_to_it(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_month=2 * AMOUNT)), world.payee()
    world.vm.now = FEBRUARY - 60
    seen, unseen = (lock(world, vault, payee.owner, timeout=60) for _ in range(2))
    world.vm.now = FEBRUARY
    # Before and after the first payment of the new month
    world.vm.succeed(world.build.refund_escrow(unseen))
    assert budget(world, vault, payee)[1] == 2 * AMOUNT
    world.vm.succeed(world.payment(vault, payee, 3))
    world.vm.succeed(world.build.refund_escrow(seen))
    after = ledger(world, vault)
    assert (after["month_spent"], after["day"]["total"]) == (3, 3)
    assert budget(world, vault, payee)[1] == 2 * AMOUNT - 3
    world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 2 * AMOUNT - 2))


def test_refund_later_in_the_month_credits_only_the_month(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_month=2 * AMOUNT)), world.payee()
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.now = FEBRUARY - 1
    world.vm.succeed(world.payment(vault, payee, 3))
    world.vm.succeed(world.build.refund_escrow(escrow))
    after = ledger(world, vault)
    assert (after["month_spent"], after["day"]["total"]) == (3, 3)


@pytest.mark.parametrize("released", [1, 2 * USDC, AMOUNT - 1, AMOUNT])
def test_split_credits_what_was_not_released(world: VmWorld, released: int) -> None:
    vault, payee = world.wallet(), world.payee()
    escrow = disputed(world, vault, payee.owner)
    world.vm.succeed(decision(world, escrow, released))
    after = ledger(world, vault)
    assert (after["day"]["total"], after["month_spent"]) == (released, released)


def test_nothing_is_credited_twice(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=3 * AMOUNT)), world.payee()
    kept, first, second = (lock(world, vault, payee.owner, timeout=60) for _ in range(3))
    world.vm.succeed(completion(world, kept))
    world.vm.now = START + 60
    for escrow, left in ((first, 2 * AMOUNT), (second, AMOUNT)):
        refund = world.build.refund_escrow(escrow)
        world.vm.refuse("AccountDataTooSmall", refund, refund)
        world.vm.succeed(refund)
        world.vm.refuse("AccountDataTooSmall", refund)
        after = ledger(world, vault)
        assert (after["day"]["total"], after["month_spent"]) == (left, left)


def test_escrow_never_touches_the_receivers_budgets(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    before = world.fields(receiver.vault)
    world.vm.succeed(completion(world, lock(world, vault, receiver.vault)))
    world.vm.succeed(decision(world, disputed(world, vault, receiver.vault), 0))
    assert world.fields(receiver.vault) == before


def test_refund_takes_no_more_from_a_slot_than_it_holds(world: VmWorld) -> None:
    # Given a ledger that holds less than was charged, which no instruction can cause
    vault, payee = world.wallet(), world.payee()
    escrow = lock(world, vault, payee.owner)
    data = bytearray(world.vm.data(vault))
    struct.pack_into("<Q", data, DAY_TOTAL, 3)
    struct.pack_into("<Q", data, DAY_SLOTS + 8 * (START // SLOT % RING), 3)
    struct.pack_into("<Q", data, LEDGER + 2 * 8, 2)
    world.vm.put(vault, bytes(data), PROGRAM_ID)
    assert (ledger(world, vault)["day"]["total"], ledger(world, vault)["month_spent"]) == (3, 2)
    # When it is refunded, then neither goes below zero
    world.vm.now = START + HOUR
    world.vm.succeed(world.build.refund_escrow(escrow))
    assert (ledger(world, vault)["day"]["total"], ledger(world, vault)["month_spent"]) == (0, 0)


def test_last_payments_slot_is_charged_when_the_clock_steps_back(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=2 * AMOUNT)), world.payee()
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START - 2 * DAY
    escrow = lock(world, vault, payee.owner)
    assert world.fields(escrow.address)["charged"]["slot"] == START // SLOT
    world.vm.succeed(dispute(world, escrow))
    world.vm.succeed(decision(world, escrow, 0))
    assert ledger(world, vault)["day"]["slots"][START // SLOT % RING] == 1
