"""The marker and the precondition of tests that compile for sBPF."""

import os
import shutil
import subprocess

import pytest

from tests.toolchain.paths import PACKAGES


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "toolchain: compiles for sBPF with Debian's Rust and LLVM packages (minutes)")


def _missing() -> list[str]:
    query = shutil.which("dpkg-query")
    if query is None:
        return list(PACKAGES)
    found = subprocess.run([query, "-W", "-f", "${Package} ", *PACKAGES], capture_output=True, text=True, check=False)
    return sorted(set(PACKAGES) - set(found.stdout.split()))


@pytest.fixture(scope="session")
def debian_packages() -> None:
    """Skip where the compiler packages are missing; in continuous integration that is a failure."""
    if missing := _missing():
        reason = f"not installed: {', '.join(missing)}; programs/toolchain/build installs them on Debian 12 as root"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
