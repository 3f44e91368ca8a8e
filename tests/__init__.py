"""Tests of all packages; `tests/README.md` describes the folders."""

import os
import sys

# The tests start hundreds of processes, and each would compile the service again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
