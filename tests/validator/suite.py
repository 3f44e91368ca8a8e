"""Collects the program's tests again, for the validator."""

import importlib
from collections.abc import Iterable
from types import ModuleType

import pytest

from tests.validator.tests_of_the_program import MODULES, SMOKE


class Suite(pytest.File):
    """The modules listed in `tests_of_the_program.py`.

    The file's name sorts it after the tests of windows, whose prepared past must still be recent.
    """

    def collect(self) -> Iterable[pytest.Collector]:
        for name in MODULES:
            yield Borrowed.from_parent(self, name=name, path=self.path, nodeid=f"{self.nodeid}::{name}")


class Borrowed(pytest.Module):
    """A module of `tests/program` without the excluded tests."""

    def _getobj(self) -> ModuleType:
        return importlib.import_module(f"tests.program.{self.name}")

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        self.add_marker(pytest.mark.validator)
        self.add_marker(pytest.mark.usefixtures("vms_on_the_validator", "start_is_now"))
        left_out, smoke = MODULES[self.name], SMOKE.get(self.name, set())
        found = set()
        for item in super().collect():
            names = {item.name, item.name.partition("[")[0]}
            found |= names
            if names & left_out.keys():
                continue
            if item.name in smoke:
                item.add_marker(pytest.mark.validator(smoke=True))
            yield item
        if gone := (left_out.keys() | smoke) - found:
            raise self.CollectError(f"tests.program.{self.name} has no test {', '.join(sorted(gone))}")
