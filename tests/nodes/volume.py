"""A volume of a few megabytes under a tablespace, which a test lets run full."""

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.postgres import Cluster

_SIZE = "64m"


@dataclass(frozen=True, slots=True)
class Volume:
    """A mounted file system with a tablespace and the database in it; what is written ahead is on another volume."""

    folder: Path
    database: str

    def fill(self) -> None:
        """Take all the space that is left; the database may still use what is free within its files."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def take(self, size: int) -> None:
        """Take some of the space that is left, or all of it if that is less."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            file.write(bytes(size))

    def make_room(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


@contextmanager
def small_disk(folder: Path) -> Iterator[Volume]:
    """Mount a volume at a new folder. Skip where nothing can be mounted."""
    folder.mkdir()
    _mount(folder)
    try:
        yield Volume(folder, "")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def small_volume(cluster: Cluster, template: str) -> Iterator[Volume]:
    """Mount a volume and copy the template into a tablespace on it. Skip where nothing can be mounted."""
    name = f"small_{secrets.token_hex(4)}"
    folder = cluster.folder / name
    with contextlib.ExitStack() as stack:
        folder.mkdir()
        _mount(folder)
        stack.callback(subprocess.run, ["umount", str(folder)], check=True)
        tablespace = folder / "tablespace"
        tablespace.mkdir()
        owner = (cluster.folder / "data").stat()
        os.chown(tablespace, owner.st_uid, owner.st_gid)
        cluster.execute(f"CREATE TABLESPACE {name} LOCATION '{tablespace}'")
        stack.callback(cluster.execute, f"DROP TABLESPACE {name}")
        volume = Volume(folder, cluster.database(template, name))
        stack.callback(cluster.execute, f"DROP DATABASE {volume.database} WITH (FORCE)")
        stack.callback(volume.make_room)
        yield volume


def _mount(folder: Path) -> None:
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small volume")
    command = [mount, "-t", "tmpfs", "-o", f"size={_SIZE},mode=755", "tmpfs", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small volume cannot be mounted here: {done.stderr.strip()}")  # a right, which no package gives
