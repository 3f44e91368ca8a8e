"""The lock files hold a version that `pyproject.toml` allows of every dependency, and hashes instead of addresses."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_EXTRAS = _PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("name", "extras"), [("requirements.lock", ()), ("requirements-test.lock", ("pkcs11", "postgresql", "test", "dev"))]
)
def test_lock_allows_what_the_project_needs(name: str, extras: tuple[str, ...]) -> None:
    text = (_ROOT / name).read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", text, re.MULTILINE))
    wanted = [
        Requirement(one) for one in (*_PROJECT["dependencies"], *(one for extra in extras for one in _EXTRAS[extra]))
    ]
    for one in wanted:
        key = re.sub(r"[-_.]+", "-", one.name).lower()
        assert key == _PROJECT["name"] or one.specifier.contains(locked[key]), one
    assert text.count("\n    --hash=sha256:") >= len(locked)
    assert "://" not in text
