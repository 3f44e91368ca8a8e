"""Fixtures of the tests on the validator; collects the program's tests for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program.conftest import world
from tests.support import vm_world
from tests.validator import tests_of_the_program
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node
from tests.validator.stages import Stages
from tests.validator.suite import Suite

__all__ = ["world"]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path == Path(tests_of_the_program.__file__):
        return Suite.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="module")
def vms_on_the_validator(request: pytest.FixtureRequest, validator: Node, stages: Stages) -> Iterator[None]:
    """Give every test that creates a VM or an attack stage one on the validator."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (vm_world, request.module):
            patch.setattr(module, "Vm", lambda: ValidatorVm(validator), raising=False)
        patch.setattr(request.module, "AttackStage", lambda: stages.next(validator), raising=False)
        yield


@pytest.fixture
def start_is_now(request: pytest.FixtureRequest, validator: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the start time of the VM that of the test."""
    if hasattr(request.module, "START"):
        monkeypatch.setattr(request.module, "START", ValidatorVm(validator).now)
