"""Packages of Node.js that tests need."""

import shutil
from pathlib import Path

from tests.support.needs import skip_or_fail

_CLIENTS = Path(__file__).resolve().parents[1] / "clients"


def generated_clients() -> Path:
    """Return the packages of `tests/clients/openapi`. Without them or Node.js, skip, or fail if CI=true."""
    return _packages("openapi")


def compiler() -> Path:
    """Return the TypeScript compiler of `tests/clients/typescript`, a native one that takes a second."""
    return _packages("typescript") / ".bin/tsc"


def _packages(name: str) -> Path:
    modules = _CLIENTS / name / "node_modules"
    if shutil.which("node") is None or not modules.exists():
        reason = f"needs Node.js and `npm ci --prefix tests/clients/{name}`"
        skip_or_fail(reason)
    return modules
