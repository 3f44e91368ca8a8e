"""Checks that native and sBPF builds of `programs/toolchain/torture` compute the same from the same inputs."""

import os
import random
import re
import secrets
import subprocess
from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from tests.toolchain.paths import TOOLCHAIN
from tests.toolchain.vm import ProgramVm, return_data

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("debian_packages")]

CRATE = TOOLCHAIN / "torture"
SECTIONS = int(re.findall(r"const SECTIONS: \[Section; (\d+)\]", (CRATE / "src/lib.rs").read_text())[0])
QUICK, FULL = 1_800, 100_000
"""Number of inputs."""
AT_ONCE = 1_000


@pytest.fixture(scope="module")
def native() -> Path:
    """The native build, by the compiler that also makes the sBPF build."""
    environment = {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}", "RUSTC": "/usr/bin/rustc"}
    command = ["/usr/bin/cargo", "build", "--quiet", "--release", "--locked", "--bin", "native"]
    subprocess.run([*command, "--target-dir", CRATE / "target"], cwd=CRATE, env=environment, check=True)
    return CRATE / "target/release/native"


@pytest.fixture(scope="module")
def sbpf(tmp_path_factory: pytest.TempPathFactory) -> ProgramVm:
    """The sBPF build, loaded into a virtual machine."""
    program = tmp_path_factory.mktemp("torture") / "torture.so"
    subprocess.run([TOOLCHAIN / "build-sbf", CRATE, program], check=True)
    return ProgramVm(program, Pubkey.new_unique())


def some_bytes(source: random.Random) -> bytes:
    """Return random bytes, often with many 0 and 255, where arithmetic has its edge cases."""
    length = source.choice([8, 13, 64, 97, 200, 333, 500])
    random_bytes = source.randbytes(length)
    if source.random() < 0.3:
        return random_bytes
    return bytes(source.choice([byte, 0, 255]) for byte in random_bytes)


def test_both_builds_compute_the_same(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], native: Path, sbpf: ProgramVm
) -> None:
    count = FULL if request.config.getoption("--full") else QUICK
    seed = int(request.config.getoption("--hypothesis-seed") or secrets.randbits(32))
    with capsys.disabled():
        print(f"\n{count} inputs of {SECTIONS} sections; to repeat them: --hypothesis-seed={seed}")
    source = random.Random(seed)
    for first in range(0, count, AT_ONCE):
        # Given inputs for every section
        numbers = range(first, min(first + AT_ONCE, count))
        inputs = [bytes([i % SECTIONS]) + some_bytes(source) for i in numbers]
        lines = "\n".join(data.hex() for data in inputs)

        # When both builds run them
        output = subprocess.run([native], input=lines, capture_output=True, text=True, check=True).stdout.split()
        results = [sbpf.run(data) for data in inputs]

        # Then nothing differs
        differing = [
            (data.hex(), expected, result.meta().logs())
            for data, expected, result in zip(inputs, output, results, strict=True)
            if not expected or return_data(result).hex() != expected
        ]
        assert not differing, f"{len(differing)} of {len(inputs)} differ, the first: {differing[0]}"
