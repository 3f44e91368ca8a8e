"""The policy crate compiled for this machine, as a program that replays payments.

Its input and output are described at the top of `programs/agent-vault/policy/examples/replay.rs`.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parents[3] / "programs"


def find_cargo() -> str | None:
    """Return the path of a working cargo: rustup's proxy exists even if no toolchain is chosen."""
    cargo = shutil.which("cargo")
    if cargo is None or subprocess.run([cargo, "--version"], capture_output=True, check=False).returncode:
        return None
    return cargo


def build(cargo: str) -> Path:
    """Compile the program that replays payments, and return its path."""
    command = [cargo, "build", "--locked", "--release", "--package", "agent-vault-policy", "--example", "replay"]
    built = subprocess.run(
        [*command, "--message-format", "json"], cwd=PROGRAMS, stdout=subprocess.PIPE, check=True, text=True
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (executable,) = [Path(one["executable"]) for one in messages if one.get("executable")]
    return executable


def replay(program: Path, script: Sequence[str]) -> list[str]:
    """Return the verdict on each payment of a script."""
    finished = subprocess.run([program], input="\n".join(script) + "\n", stdout=subprocess.PIPE, check=True, text=True)
    return finished.stdout.splitlines()
