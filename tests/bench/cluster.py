"""A PostgreSQL server for a benchmark."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tests.support.postgres import Cluster, programs, running


@contextmanager
def own_cluster() -> Iterator[tuple[Cluster, Path]]:
    """Run a server of its own; yields it and an empty folder. Raises click.ClickException if there is no PostgreSQL."""
    binaries = programs()
    if binaries is None:
        raise click.ClickException("there is no PostgreSQL server")
    with running(binaries) as cluster, tempfile.TemporaryDirectory() as folder:
        yield cluster, Path(folder)
