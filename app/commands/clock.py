"""`agent-vault clock`: moves the embedded chain's time forward for tests, and back."""

import os
import re
import shutil
from contextlib import closing
from pathlib import Path

import click
import httpx
from sqlalchemy import Connection

from app.commands._api import API_KEY, api_url
from app.commands._sidecar import alone_on
from app.commands.command_options import data_folder, record_for_all, settings_of
from app.core.paths import ConfigurationError, Paths
from app.core.signers import read_secret
from app.database import SqliteDatabase
from app.database.sqlite import copy_database
from app.localnet import genesis
from app.server.databases import IN_USE, require_file
from app.store.schema import create_tables
from app.store.values import put_value

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SECONDS = 60.0


def _duration(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """Parse a duration such as 25h, 90m or 1d12h and return seconds."""
    if not re.fullmatch(r"(\d{1,9}[dhms])+", text, re.ASCII):
        raise click.BadParameter(f"{text} is not a duration such as 25h, 90m or 1d12h")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))


@click.group()
def clock() -> None:
    """Move the embedded chain's time forward for tests, and back."""


@clock.command()
@click.argument("duration", callback=_duration)
@data_folder
@api_url
def advance(duration: int, data_dir: Path | None, url: str) -> None:
    """Advance the time of a running service and its embedded chain by DURATION, such as 25h, 90m or 1d12h.

    The admin's API key is read from AGENT_VAULT_API_KEY, or else from the file in the data folder.
    """
    key = os.environ.get(API_KEY) or read_secret(settings_of(data_dir=data_dir).paths().admin_key)
    headers = {"Authorization": f"Bearer {key.strip()}"}
    try:
        response = httpx.post(f"{url}/v1/test/clock", json={"seconds": duration}, headers=headers, timeout=_SECONDS)
        found = response.json()
        if response.is_error:
            raise ConfigurationError(found["error"]["message"])
        click.echo(
            f"The chain's time is {found['chain_time']}, {found['ahead_seconds']:,} seconds ahead of the host's."
        )
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"no usable response from {url} ({error}); start the service or pass --url") from None


@clock.command()
@data_folder
def reset(data_dir: Path | None) -> None:
    """Return a stopped service to its state before the first advance. All later changes are lost."""
    settings = settings_of(data_dir=data_dir)
    require_file(settings, "this command")
    paths = settings.paths()
    if not paths.before_clock.is_dir():
        raise ConfigurationError(f"the clock of {paths.root} was never advanced; name another folder with --data-dir")
    with alone_on(paths), closing(genesis.lock(paths.localnet)):
        _put_back(paths)
    click.echo(f"{paths.root} is as it was before the first advance. Start `agent-vault serve` again.")


def _put_back(paths: Paths) -> None:
    """Replace the databases by the copies. Deletes the copies last, in case the reset is interrupted."""
    for target in paths.databases:
        for path in target.parent.glob(f"{target.name}-*"):
            path.unlink()
        draft = target.with_name(f"{target.name}.new")
        copy_database(paths.before_clock / target.name, draft)
        draft.replace(target)
    # The later attempts were removed on purpose. They must not count as lost commits.
    for path in (paths.in_use, *paths.root.glob("committed-*")):
        path.unlink(missing_ok=True)

    def record(conn: Connection) -> None:
        put_value(conn, IN_USE, "")
        record_for_all(conn, "clock.reset")

    with closing(SqliteDatabase(paths.database, create_tables)) as db:
        db.write_now(record)
    shutil.rmtree(paths.before_clock)
