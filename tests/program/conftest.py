"""Fixtures of the program's tests."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from solders.message import Message

from tests.program.sequences.native import find_cargo
from tests.support.native_twin import NativeTwin
from tests.support.needs import skip_or_fail
from tests.support.runtimes import Runtime
from tests.support.twins import Comparison, Machine, Twin
from tests.support.vm import PROGRAM, PROGRAM_ID, Vm
from tests.support.vm_world import VmWorld

COMPARISONS = pytest.StashKey[list[Comparison]]()
BUILD = Path(__file__).parents[2] / "programs" / "twin" / "build"


@pytest.fixture
def world() -> VmWorld:
    """A new organisation in a new VM."""
    return VmWorld()


@pytest.fixture(scope="session")
def newer_runtime(newer_solders: Runtime) -> Runtime:
    """A newer runtime with the program."""
    newer_solders.do("program", address=str(PROGRAM_ID), path=str(PROGRAM.absolute()))
    return newer_solders


@pytest.fixture(scope="session", name="native_twin")
def _native_twin() -> Iterator[NativeTwin]:
    """The program compiled for this machine. Without cargo, the test is skipped, or fails if CI=true."""
    if find_cargo() is None:
        skip_or_fail("there is no working cargo to compile the native twin")
    built = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, check=True).stdout
    executable, program = (Path(name) for name in built.split())
    with closing(NativeTwin(executable, program)) as twin:
        yield twin


@pytest.fixture(scope="session", name="second_build")
def _second_build() -> Machine:
    """A second file of the program for the VM. Without one, the test is skipped, or fails if CI=true."""
    file = os.environ.get("AGENT_VAULT_TWIN")
    if not file:
        skip_or_fail("AGENT_VAULT_TWIN names no second build of the program")
    return Machine(Path(file))


@pytest.fixture(scope="session", params=["native_twin", "second_build"])
def comparison(request: pytest.FixtureRequest) -> Comparison:
    """The program under test next to each of its twins."""
    twin: Twin = request.getfixturevalue(request.param)
    return Comparison(Machine(PROGRAM), twin)


@pytest.fixture(scope="package", autouse=True)
def _twins_of_everything(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--full`, compare every instruction of the tests in this folder with each twin that there is."""
    if not request.config.getoption("--full"):
        yield
        return
    machine = Machine(PROGRAM)
    comparisons = []
    if find_cargo() is not None:
        comparisons.append(Comparison(machine, request.getfixturevalue("native_twin")))
    if os.environ.get("AGENT_VAULT_TWIN"):
        comparisons.append(Comparison(machine, request.getfixturevalue("second_build")))
    request.config.stash[COMPARISONS] = comparisons

    def watch(vm: Vm, message: Message) -> None:
        for one in comparisons:
            one.watch(vm, message)

    Vm.watcher = watch
    yield
    Vm.watcher = None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much was compared with each twin."""
    for one in config.stash.get(COMPARISONS, []):
        total = sum(one.compared.values())
        terminalreporter.write_line(f"{type(one.twin).__name__}: {total} instructions of the program did the same")
