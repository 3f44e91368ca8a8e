"""Tests that fail beside others without a known defect. `.ci/run` lets them fail if they pass alone.

`python -m tests.exempt FAILED ALONE` compares two lists of pytest: what failed, and what failed again alone.
"""

import json
import sys
from pathlib import Path

MOST = 5
EXEMPT = {
    "tests/chain/test_client.py::test_node_that_does_not_answer_as_it_must_is_unavailable[]": (
        "2026-11-27",
        "Seen under load only. The cause is unproved; the handlers of its server are awaited since.",
    ),
}
"""The date and the cause of each, by its id. None is about money."""


def unexcused(failed: set[str], alone: set[str]) -> list[str]:
    """Return the tests whose failure fails the run."""
    return sorted(failed - EXEMPT.keys() | failed & alone)


def _names(path: str) -> set[str]:
    return set(json.loads(Path(path).read_text())) if Path(path).exists() else set()


if __name__ == "__main__":
    found = unexcused(*map(_names, sys.argv[1:]))
    print(f"Exempt: {', '.join(_names(sys.argv[1]) - {*found}) or 'none'}. Failed: {', '.join(found) or 'none'}.")
    sys.exit(bool(found))
