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
    """Audit logs: who did what, in hash chains."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--service", is_flag=True, help="The service's own log, of failed authentications."),
        click.option("--org", help="Id or address of the organisation; not needed if there is only one."),
        data_folder,
    ):
        command = option(command)
    return command


def _log_of(db: Database, org: str | None, *, service: bool) -> str:
    if service and org is not None:
        raise click.UsageError("give --org or --service, not both")
    return SERVICE if service else address_of(db, org)


@audit.command("list")
@_options
def list_entries(data_dir: Path | None, org: str | None, *, service: bool) -> None:
    """Print the log, oldest entry first, each as a line of JSON as `GET /v1/audit-log` shows it.

    An entry that somebody made unreadable has `number` and `reason` only.
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
@click.option("--head", required=True, help="Hash of an entry that was noted earlier, such as a head that was sent.")
@_options
def verify(head: str, data_dir: Path | None, org: str | None, *, service: bool) -> None:
    """Check that no entry was rewritten, removed or put in between, and that HEAD is still in the log.

    Exits with 1 and says where if that is not so.
    """
    with open_database(data_dir) as (db, _ring):
        log = _log_of(db, org, service=service)
        try:
            count = db.read_now(lambda conn: verify_log(conn, log, head.lower()))
        except BrokenLogError as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"Verified: {count} entries.")
