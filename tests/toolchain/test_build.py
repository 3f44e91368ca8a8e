"""Checks what `programs/toolchain/build` refuses before it compiles anything."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.toolchain.paths import TOOLCHAIN


def build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [TOOLCHAIN / "build", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_an_unknown_argument_is_refused_with_the_usage() -> None:
    result = build("--everything")
    assert result.returncode == 1
    assert "usage: build [--check]" in result.stderr


@pytest.mark.toolchain
@pytest.mark.usefixtures("debian_packages")
@pytest.mark.parametrize("address", ["0OIl", "a b", "1" * 31, '1");'])
def test_an_invalid_program_id_is_refused(address: str) -> None:
    result = build(AGENT_VAULT_PROGRAM_ID=address)
    assert result.returncode == 1
    assert f"AGENT_VAULT_PROGRAM_ID is not an address: {address}" in result.stderr
