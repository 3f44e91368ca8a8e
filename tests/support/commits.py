"""Commits on PostgreSQL, observed or disturbed by a test."""

from collections.abc import Callable
from typing import Any

import pytest

from app.database.postgres._statements import Sender, StatementResult

Commit = Callable[[], StatementResult]


def commit_by(monkeypatch: pytest.MonkeyPatch, commit: Callable[[Commit, Any], StatementResult]) -> None:
    """Replace the service's commits by `commit`, which gets the original commit and the driver's connection."""
    own = Sender.run_all

    def run_all(sender: Sender, script: str) -> StatementResult:
        if not script.endswith("COMMIT"):
            return own(sender, script)
        return commit(lambda: own(sender, script), sender._connection)

    monkeypatch.setattr(Sender, "run_all", run_all)
