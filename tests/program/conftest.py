"""Fixtures and options of the program's tests."""

import pytest

from tests.program.world import World


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run 2,000 random sequences of up to 200 payments instead of 200 short ones"
    )


@pytest.fixture
def world() -> World:
    """An organisation of its own, in a VM of its own."""
    return World()
