"""Measures the compute units of every instruction on two runtimes, compared with a plain TransferChecked.

    python -m tests.bench.compute_units

`tests/program/test_compute_units.py` holds the limits. For the runtimes see `tests/support/runtimes.py`.
"""

import os
import sys
from typing import Any

from solders.keypair import Keypair

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.payees import ENTRY
from app.chain.rules import Rules
from tests.bench.allowance_units import allowance_units
from tests.bench.escrow_units import escrow_units
from tests.bench.story import NEVER, PROGRAM, USDC, Story
from tests.bench.tables import table
from tests.bench.token_bytes import token_account_bytes
from tests.support.runtimes import NEWER, OLDER, Runtime

RUNTIMES = (OLDER, NEWER)


def measure(runtime: Runtime) -> tuple[int, dict[str, int], dict[str, int]]:
    """Return the units of the plain transfer, of every instruction, and of payments by the rules set."""
    story = Story(runtime)
    story.found()
    transfer = story.transfer()
    merchant = bytes(story.merchant.pubkey())
    recipient = story.addresses.recipient(story.org, story.merchant.pubkey())
    ten, thousand = ([merchant, *(os.urandom(32) for _ in range(size - 1))] for size in (10, 1000))
    every: dict[str, Any] = {
        "max_per_tx": USDC, "max_per_day": 1000 * USDC, "max_per_month": 1000 * USDC, "velocity_cap": 100,
        "expiry": NEVER, "require_co_sign": 10, "blocked_categories": 1, "restricted": True,
    }  # fmt: skip
    cases: list[tuple[str, Rules, list[bytes] | None, dict[str, Any]]] = [
        ("no rule", Rules(), None, {}),
        ("max_per_tx", Rules(max_per_tx=USDC), None, {}),
        ("max_per_day", Rules(max_per_day=1000 * USDC), None, {}),
        ("max_per_month", Rules(max_per_month=1000 * USDC), None, {}),
        ("velocity_cap", Rules(velocity_cap=100), None, {}),
        ("allowed_recipients, 10 entries", Rules(restricted=True), ten, {}),
        ("blocked_categories", Rules(blocked_categories=1), None, {"recipient": recipient}),
        ("expiry", Rules(expiry=NEVER), None, {}),
        ("require_co_sign", Rules(require_co_sign=10), None, {"co_sign": True}),
        ("all eight, 10 entries", Rules(**every), ten, {"recipient": recipient, "co_sign": True}),
        ("all eight, 1,000 entries", Rules(**every), thousand, {"recipient": recipient, "co_sign": True}),
    ]
    payments: dict[str, int] = {}
    for number, (name, rules, entries, optional) in enumerate(cases):
        policy, allowlist = story.policy(f"policy-{number}", rules, entries)
        vault = story.wallet(f"agent-{number}", policy)
        if allowlist is not None:
            optional["allowlist"] = allowlist
        for _ in range(2):  # the first payment finds an empty ledger
            payments[name] = story.pay(vault, policy, **optional)
    payments["all eight, 1,000 entries, worst of gaps of 1 to 97 slots"] = story.worst_gap(vault, policy, **optional)
    unregistered = Keypair().pubkey()
    story.destination = story.addresses.token_account(unregistered)
    runtime.account(story.destination, TOKEN_PROGRAM, token_account_bytes(story.mint, unregistered, 0))
    optional = {"recipient": story.addresses.recipient(story.org, unregistered)}
    policy, _ = story.policy("unregistered", Rules(blocked_categories=2))
    vault = story.wallet("unregistered", policy)
    for _ in range(2):
        payments["blocked_categories, recipient not registered"] = story.pay(vault, policy, **optional)
    for number, entries in enumerate((ten, thousand)):
        listed = [bytes(unregistered), *entries[1:]]
        strict, allowlist = story.policy(f"strict-{number}", Rules(**{**every, "blocked_categories": 2}), listed)
        name = f"all eight, {len(listed):,} entries, recipient not registered, worst of those gaps"
        held = story.wallet(f"strict-{number}", strict)
        payments[name] = story.worst_gap(held, strict, allowlist=allowlist, co_sign=True, **optional)
    budget = story.budget("team")
    company = story.budget("company")
    child = story.budget("child", company)
    plain, _ = story.policy("plain", Rules())
    for name, policy_of, given in (
        ("no rule", plain, {}),
        ("all eight, 1,000 entries, recipient not registered", strict, {"allowlist": allowlist, **optional}),
    ):
        held = story.wallet(f"in a budget, {name}", policy_of)
        story.join(held, budget)
        given |= {"budget": budget, "co_sign": policy_of == strict}
        for _ in range(2):
            payments[f"{name}, in a budget"] = story.pay(held, policy_of, **given)
        payments[f"{name}, in a budget, worst of those gaps"] = story.worst_gap(held, policy_of, **given)
        held = story.wallet(f"below a parent, {name}", policy_of)
        story.join(held, child, company)
        given |= {"budget": child, "budget_parent": company}
        for _ in range(2):
            payments[f"{name}, in a budget with a parent"] = story.pay(held, policy_of, **given)
        payments[f"{name}, in a budget with a parent, worst of those gaps"] = story.worst_gap(held, policy_of, **given)
    capped, _ = story.policy("capped", Rules(new_recipient_cap=10 * USDC))
    held = story.wallet("capped", capped)
    story.step("migrate", story.instructions.migrate(payer=story.payer.pubkey(), account=held))
    story.pay(held, capped)
    payments["new_recipient_cap, stranger"] = story.pay(held, capped)
    # The most expensive payment: a stranger takes the place of one whose day is over, which then is known.
    lists = b"".join(ENTRY.pack(os.urandom(16), 1, 5, 40 - number) for number in range(24))
    lists += b"".join(ENTRY.pack(os.urandom(16), 9 - number, 5, 50) for number in range(8))
    runtime.account(held, story.codec.program_id, story.read(held)[: -len(lists)] + lists)
    payments["new_recipient_cap, most"] = story.pay(held, capped)
    free = story.wallet("no budget", plain)
    payments["no rule, worst of those gaps"] = story.worst_gap(free, plain)
    story.units |= escrow_units(story, every, ten)
    story.units |= allowance_units(story, every, ten)
    story.rest(vault, policy)
    return transfer, story.units, payments


def main() -> None:
    """Measure and print two tables."""
    results = []
    for version in RUNTIMES:
        with Runtime(version) as runtime:
            results.append(measure(runtime))
    heads = [f"solders {version}" for version in RUNTIMES]
    transfers = [transfer for transfer, _, _ in results]
    rows = [["TransferChecked", *map(str, transfers)]]
    rows += [[name, *(str(units[name]) for _, units, _ in results)] for name in results[0][1]]
    sys.stdout.write(table(["instruction", *heads], rows))
    rows = [
        [name, *(f"{payments[name]} (+{payments[name] - transfer})" for transfer, _, payments in results)]
        for name in results[0][2]
    ]
    sys.stdout.write(table(["execute_payment with (beyond the plain transfer)", *heads], rows))
    sys.stdout.write(f"program: {PROGRAM.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
