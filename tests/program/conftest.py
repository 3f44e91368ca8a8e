"""Fixtures of the program's tests."""

import pytest

from tests.support.vm_world import VmWorld


@pytest.fixture
def world() -> VmWorld:
    """A new organisation in a new VM."""
    return VmWorld()
