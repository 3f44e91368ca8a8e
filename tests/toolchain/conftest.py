"""Marker and precondition of the tests that compile for sBPF."""

import shutil
import subprocess

import pytest

from tests.support.needs import skip_or_fail
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
    """Skip if the compiler packages are missing, or fail if CI=true."""
    if missing := _missing():
        reason = f"not installed: {', '.join(missing)}; programs/toolchain/build installs them on Debian 12 as root"
        skip_or_fail(reason)
