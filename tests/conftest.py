"""Fixtures for tests through the HTTP API: a whole service on a chain of its own or on a validator."""

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from xdist.remote import Producer

from app.database import Database, SqliteDatabase
from app.database.postgres.database import PostgresDatabase
from app.store.schema import create_tables
from tests.program.adversaries.ways import CALLS
from tests.support import postgres
from tests.support.environments import MissingEnvironmentError
from tests.support.needs import skip_or_fail
from tests.support.runtimes import NEWER, Runtime
from tests.support.scheduling import TOOLCHAIN, VALIDATOR, FileScheduling
from tests.support.service_world import ServiceWorld
from tests.validator import node, stages, windows
from tests.validator.service import ValidatorWorld


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run the long versions: 2,000 sequences of up to 200 payments, 51 kills of the service, "
        "every test of solana-test-validator",
    )
    parser.addoption(
        "--database",
        choices=["sqlite", "postgresql"],
        default="sqlite",
        help="what whole services of the tests keep their state in",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Remove the timeout for the long versions."""
    if config.getoption("--full"):
        config.option.timeout = 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the toolchain's tests first and the validator's last; without `--full`, only those marked `smoke=True`.

    One of the former takes minutes, during which other processes take the rest. A running validator keeps a core busy,
    so it must not run beside the other tests.
    """
    items.sort(key=lambda item: item.nodeid.startswith(VALIDATOR) - item.nodeid.startswith(TOOLCHAIN))
    if config.getoption("--database") != "sqlite":
        left = [item for item in items if item.get_closest_marker("sqlite")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("sqlite")]
    marked = [(item, item.get_closest_marker("validator")) for item in items]
    full = config.getoption("--full")
    last: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item, mark in marked:
        if mark is not None:
            (last if full or mark.kwargs.get("smoke") is True else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [*(item for item, mark in marked if mark is None), *last]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the attacks that are derived from the IDL apart, so that the count of tests says something."""
    passed = terminalreporter.getreports("passed")
    attacks = sum("adversary" in report.keywords for report in passed)
    if attacks:
        terminalreporter.write_line(
            f"of these, {attacks} attacks derived from the IDL and {len(passed) - attacks} tests"
        )


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Undo what commands run in the test process did to the logs."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session", name="windows")
def _windows() -> windows.Windows:
    """The vaults with a history that the validator starts with."""
    return windows.make(int(time.time()))


@pytest.fixture(scope="session", name="stages")
def _stages(request: pytest.FixtureRequest) -> stages.Stages:
    """The stages of the adversaries' tests on the validator: one for all attacks and one for each call."""
    count = 1 + len(CALLS) if request.config.getoption("--full") else 0
    return stages.Stages(int(time.time()), count)


@pytest.fixture(scope="session")
def validator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[node.Node]:
    """A running solana-test-validator. Without one, the test is skipped, or fails if CI=true."""
    command = node.executable()
    if command is None:
        reason = f"there is no solana-test-validator: neither {node.VARIABLE} nor PATH has one"
        skip_or_fail(reason)
    accounts = {**request.getfixturevalue("windows").accounts(), **request.getfixturevalue("stages").accounts()}
    with node.running(command, tmp_path_factory.mktemp("validator"), accounts) as running:
        yield running


@pytest.fixture(scope="session", name="newer_solders")
def _newer_solders() -> Iterator[Runtime]:
    """A newer release of solders. Where it cannot be installed, the test is skipped, or fails if CI=true."""
    try:
        started = Runtime(NEWER)
    except MissingEnvironmentError as error:
        skip_or_fail(f"{error} cannot be installed")
    with started as runtime:
        yield runtime


@pytest.fixture(scope="session")
def cluster() -> Iterator[postgres.Cluster]:
    """A running PostgreSQL server. Without its programs, the test is skipped, or fails if CI=true."""
    binaries = postgres.programs()
    if binaries is None:
        skip_or_fail("there is no PostgreSQL server: install Debian's postgresql")
    with postgres.running(binaries) as running:
        yield running


@pytest.fixture(scope="session", name="template")
def _template(cluster: postgres.Cluster) -> str:
    """The name of a PostgreSQL database with the schema and nothing else."""
    return cluster.upgraded()


@pytest.fixture(scope="session", autouse=True)
def _services_database(request: pytest.FixtureRequest) -> None:
    """Give every service a database on PostgreSQL if `--database` says so."""
    if request.config.getoption("--database") == "postgresql":
        cluster, template = request.getfixturevalue("cluster"), request.getfixturevalue("template")
        ServiceWorld.new_database = staticmethod(lambda: cluster.url(cluster.database(template)))


@pytest.fixture
def postgres_url(cluster: postgres.Cluster, template: str) -> str:
    """The address of a new PostgreSQL database with the schema, which ends with the cluster."""
    return cluster.url(cluster.database(template))


@pytest.fixture
def sqlite_db(tmp_path: Path) -> Iterator[Database]:
    """A new database in the file `app.db`."""
    with closing(SqliteDatabase(tmp_path / "app.db", create_tables)) as opened:
        yield opened


@pytest.fixture
def postgres_db(postgres_url: str) -> Iterator[PostgresDatabase]:
    """A new database on PostgreSQL."""
    with closing(PostgresDatabase(postgres_url)) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest) -> Database:
    """A new database, once of each kind."""
    found: Database = request.getfixturevalue("sqlite_db" if request.param == "sqlite" else "postgres_db")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceWorld]:
    """A service shared by the tests of a module; each creates its own wallets."""
    async with ServiceWorld(tmp_path_factory.mktemp("service")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def own_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """A service for one test, which may stop it, break it or move its clock; on a validator if requested."""
    on_validator = getattr(request, "param", None) == "validator"
    async with (
        ValidatorWorld(tmp_path, request.getfixturevalue("validator"))
        if on_validator
        else ServiceWorld(tmp_path) as opened
    ):
        yield opened
