"""Reads the table of refusals, and prints what it would be now.

`python -m tests.program.adversaries.table` prints the table of what the program answers today. Before you replace the
file, review every line that differs: each says which check stops which attack.
"""

import itertools
from pathlib import Path

from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS

TABLE = Path(__file__).with_name("refusals.txt")

Key = tuple[str, str, str]
"""Call, account and kind of attack."""

_HEAD = """\
# What each attack on each account of each instruction is refused with. A name with a colon is another program's error.
"""


def read() -> dict[Key, str]:
    """Return the error of each attack."""
    table: dict[Key, str] = {}
    call = ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            call = line.strip("[]")
        elif line and not line.startswith("#"):
            account, attack, error = (cell.strip() for cell in line.split("|"))
            assert (call, account, attack) not in table, f"{call}: {line} is listed twice"
            table[call, account, attack] = error
    return table


def write(table: dict[Key, str]) -> str:
    """Return the table's text."""
    text = _HEAD
    for call, rows in itertools.groupby(table.items(), key=lambda row: row[0][0]):
        text += f"\n[{call}]\n"
        for (_, account, attack), error in rows:
            text += f"{account:<25}| {attack:<33}| {error}\n"
    return text


def observe() -> dict[Key, str]:
    """Return what the program answers to each attack now."""
    stage = AttackStage()
    return {
        (attack.way, attack.account, attack.kind): stage.vm.simulate(*attack.call.instructions).error or "ACCEPTED"
        for way in CALLS
        for attack in attacks(stage, way)
        if not attack.harmless
    }


if __name__ == "__main__":
    print(write(observe()), end="")
