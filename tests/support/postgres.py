"""A PostgreSQL server only for tests: one cluster per session, a new database for each test."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from app.database.migrations import upgrade
from app.database.postgres.engine import database_name, engine_of
from app.store.schema import create_tables

SERVER_ACCOUNT = "postgres"
"""The unprivileged account from Debian's package. The server refuses to run as root."""
SUPERUSER = "cluster"
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
"""Mark of tests that use the fixture `db` and read the file of the database."""
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # the tests kill processes, not the machine
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs, or None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parent.parent.name))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).resolve().parent if named else None


class Cluster:
    """A running server, reached over a Unix socket in its folder. Every user of the socket has all rights."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self._binaries = binaries
        self._process: subprocess.Popen[bytes] | None = None
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(SERVER_ACCOUNT)
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def create(self) -> None:
        """Create the files of the cluster."""
        options = ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
        command = [str(self._binaries / "initdb"), "--pgdata", str(self.folder / "data"), *options]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._account)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._account)
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", str(self.folder), "-t", "30"]
        while subprocess.run([*ready, "-d", "postgres"], check=False).returncode != 0:
            if self._process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server.

        By default, the server ends all connections immediately; SIGQUIT acts like a crash of the machine.
        """
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def standby(self) -> "Cluster":
        """Return a running standby in a new folder. Stop and remove it like any other server."""
        other = Cluster(Path(tempfile.mkdtemp(prefix="agent-vault-postgres-")), self._binaries)
        options = ["-h", str(self.folder), "-U", SUPERUSER, "-D", str(other.folder / "data"), "-R", "-c", "fast"]
        command = [str(self._binaries / "pg_basebackup"), *options]
        subprocess.run(command, check=True, capture_output=True, cwd=other.folder, **self._account)
        other.start()
        return other

    def stop_receiving(self) -> None:
        """Stop the replication to this standby, which continues to answer queries."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        while self.execute("SELECT count(*) FROM pg_stat_wal_receiver")[0][0]:
            time.sleep(0.01)

    def promote(self) -> None:
        """Make this standby a primary."""
        assert self.execute("SELECT pg_promote(true, 30)") == [(True,)]

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and start it again."""
        self.stop(how)
        self.start()

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, user: str = SUPERUSER) -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement outside of a transaction and return its rows."""
        with closing(psycopg.connect(self.url(database), autocommit=True)) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def database(self, template: str | None = None, tablespace: str = "pg_default") -> str:
        """Create a database, empty or as a copy, and return its name."""
        name = f"test_{secrets.token_hex(6)}"
        parts = "CREATE DATABASE {} TEMPLATE {} TABLESPACE {}"
        made = sql.SQL(parts).format(*map(sql.Identifier, (name, template or "template0", tablespace)))
        self.execute(made.as_string())
        return name

    def upgraded(self) -> str:
        """Create a database with the newest schema as a template for others, and return its name."""
        name = self.database()
        engine = engine_of(self.url(name))
        upgrade(engine, database_name(self.url(name)), create_tables)
        engine.dispose()
        return name


@contextmanager
def running(binaries: Path) -> Iterator[Cluster]:
    """Run a new cluster in a temporary folder. The folder is removed at the end."""
    # Pytest's folders do not work here, because the server's account may not enter them.
    folder = Path(tempfile.mkdtemp(prefix="agent-vault-postgres-"))
    cluster = Cluster(folder, binaries)
    try:
        cluster.create()
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
