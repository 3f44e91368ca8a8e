"""Fixtures of the program's tests."""

import pytest

from tests.program.world import World


@pytest.fixture
def world() -> World:
    """An organisation of its own, in a VM of its own."""
    return World()
