"""`agent-vault audit`: reads and verifies audit logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from app.commands.command_options import address_of, data_folder, open_database
from app.database.interface import Database
from app.store.audit import SERVICE, BrokenLogError, LogEntry, rows_after
from app.store.audit import verify as verify_log
from app.store.audit_rows import UnreadableEntry

_BATCH = 1_000


@click.group()
def audit() -> None:
    """Read and verify audit logs. Each log records who did what, in a hash chain."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--service",
            is_flag=True,
            help="Use the service's own log: failed authentications, and refusals without a known organisation.",
        ),
        click.option("--org", help="Id or address of the organisation. Optional if there is only one."),
        data_folder,
    ):
        command = option(command)
    return command


def _log_of(db: Database, org: str | None, *, service: bool) -> str:
    if service and org is not None:
        raise click.UsageError("--org and --service exclude each other")
    return SERVICE if service else address_of(db, org)


@audit.command("list")
@_options
def list_entries(data_dir: Path | None, org: str | None, *, service: bool) -> None:
    """Print the log, oldest entry first, one JSON object per line, in the format of `GET /v1/audit-log`.

    An entry that was altered in the database and cannot be read has only `number` and `reason`.
    """
    with open_database(data_dir) as (db, _ring):
        log, number = _log_of(db, org, service=service), 0
        while batch := db.read_now(lambda conn: rows_after(conn, log, number, limit=_BATCH)):  # noqa: B023
            for entry in batch:
                click.echo(json.dumps(_shown(entry), ensure_ascii=False))
            number = batch[-1].number


def _shown(entry: LogEntry | UnreadableEntry) -> dict[str, Any]:
    if isinstance(entry, UnreadableEntry):
        return {"number": entry.number, "reason": entry.reason}
    return {**entry.members(), "hash": entry.hash}


@audit.command("verify")
@click.option("--head", required=True, help="Hash of an entry noted earlier, such as a head sent by the service.")
@_options
def verify(head: str, data_dir: Path | None, org: str | None, *, service: bool) -> None:
    """Check that no entry up to HEAD was rewritten, inserted, or removed before the end of its retention time.

    The check also covers the hashes of all later entries.

    Entries deleted after their retention time do not count as removed. If the check fails, the command prints the place
    of the fault and exits with 1.
    """
    with open_database(data_dir) as (db, _ring):
        log = _log_of(db, org, service=service)
        try:
            count = db.read_now(lambda conn: verify_log(conn, log, head.lower()))
        except BrokenLogError as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"Verified: entries up to number {count}.")
