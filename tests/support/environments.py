"""Separate Python environments for packages that conflict with the tests' own. The environments are cached."""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agent-vault-bench"


class MissingEnvironmentError(Exception):
    """The packages cannot be installed, for example without a network."""


def environment(name: str, *requirements: str | Path) -> Path:
    """Return the Python of the environment with this name.

    The first call installs the `requirements`, which are arguments of pip.
    """
    folder = _CACHE / name
    if not folder.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=_CACHE))
        try:
            venv.create(new)
            pip = (sys.executable, "-m", "pip", "--python", new / "bin" / "python", "install", "-q", "--no-compile")
            subprocess.run([*pip, *requirements], check=True)
            new.rename(folder)
        except subprocess.CalledProcessError as error:
            raise MissingEnvironmentError(name) from error
        except OSError:
            if not folder.exists():  # no other process has made the folder in the meantime
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder / "bin" / "python"
