"""Fixtures of the program's tests."""

import pytest

from tests.support.vm_world import VmWorld


@pytest.fixture
def world() -> VmWorld:
    """An organisation of its own, in a VM of its own."""
    return VmWorld()
