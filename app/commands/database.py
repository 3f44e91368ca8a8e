"""`agent-vault db`: prepares a PostgreSQL database and moves a data folder's records and exports into it.

The key files stay in the folder.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import click
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.identity import SameChain, WrongChainError, chain_name
from app.chain.nodes import transport_of
from app.commands._sidecar import alone_on
from app.commands.command_options import data_folder, rpc_url, settings_of
from app.core.money import format_usdc
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.database.migrations import upgrade as upgrade_schema
from app.database.postgres.engine import SETTING, database_name, engine_of
from app.exports.exporter import CHUNK
from app.server.data_folder import FolderChain, node_name, remembered
from app.server.databases import open_file, require_intact
from app.store.copying import CommitDoubtError, CopyReport, Source, commit, copy, receiving, require_empty
from app.store.exports import put_chunk, with_status
from app.store.organisations import organisations
from app.store.schema import create_tables
from app.store.values import clock_ahead
from indexer import EventStore


@click.group("db")
def database() -> None:
    """Prepare a PostgreSQL database, or move the records of a data folder into one."""


def _url(settings: Settings) -> str:
    if settings.database_url is None:
        raise ConfigurationError(
            f"set {SETTING} to the URL of the PostgreSQL database; with SQLite, `serve` upgrades the schema itself"
        )
    return settings.database_url.get_secret_value()


@database.command()
def upgrade() -> None:
    """Upgrade a new or existing database to this version's schema. With SQLite, `serve` does this itself."""
    url = _url(settings_of())
    name, engine = database_name(url), engine_of(url)
    try:
        before, after = upgrade_schema(engine, name, create_tables)
    finally:
        engine.dispose()
    if before == after:
        click.echo(f"{name}: the schema is already {after}")
    else:
        click.echo(f"{name}: the schema is now {after}" + (f", it was {before}" if before else ""))


@database.command("copy")
@data_folder
@rpc_url
def copy_folder(data_dir: Path | None, rpc_url: str | None) -> None:
    """Move the state of a stopped service from its data folder to the new database named in the settings.

    With --rpc-url, the node must belong to the folder's chain. The command copies either everything or nothing.
    Afterwards, the service continues on the database with the same keys, and no command uses the files any more.
    """
    settings = settings_of(data_dir=data_dir, rpc_url=rpc_url)
    url, paths = _url(settings), settings.paths()
    if not paths.database.is_file():
        raise ConfigurationError(f"there is no service data in {paths.root}; name its folder with --data-dir")
    require_intact(paths.database, paths.events)
    with alone_on(paths), closing(open_file(paths)) as db:
        if db.read_now(clock_ahead):
            raise ConfigurationError(f"the test clock of {paths.root} is ahead; run `agent-vault clock reset` first")
        name, done = db.read_now(lambda conn: _copy(conn, settings, url))
    click.echo(f"{name}: {done.rows} rows in {done.tables} tables, the same counts as in {paths.root}")
    click.echo(
        f"The sums of {done.sums} numeric columns, including all amounts, are unchanged. The wallets hold "
        f"{format_usdc(done.balances)} USDC; the rows of confirmed transactions add up to "
        f"{format_usdc(done.confirmed)} USDC."
    )
    click.echo(f"Keep {paths.keys}: the database needs these keys. The file {paths.database} is no longer used.")


def _copy(own: Connection, settings: Settings, url: str) -> tuple[str, CopyReport]:
    paths, chain = settings.paths(), remembered(own)
    if chain is not None and settings.rpc_url is not None:
        asyncio.run(_require_same_chain(settings, chain))
    driver = own.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    with closing(_events(paths)) as events, receiving(url) as (name, target):
        _require_own_events(events, {one.org for one in organisations(own)}, paths)
        there = remembered(target)
        if chain is not None and there is not None and there.identity != chain.identity:
            of = chain_name(there.identity.genesis_hash)
            raise ConfigurationError(f"the {name} belongs to another chain or program, on {of}. Use a new database")
        require_empty(target, name)
        done = copy([Source(driver), Source(events)], target, name)
        _copy_files(own, target, paths)
        # Mark the folder as moved just before the commit, so that no process serves from it afterwards.
        paths.moved.write_text(f"{name}\n", encoding="utf-8")
        try:
            commit(target)
        except CommitDoubtError:
            raise ConfigurationError(
                f"the connection to the {name} was lost during the commit. If the database has data now, the copy is "
                f"complete. If it is empty, remove {paths.moved} and copy again"
            ) from None
        except BaseException:
            paths.moved.unlink()
            raise
    return name, done


def _events(paths: Paths) -> sqlite3.Connection:
    """Open the stored events of the chain. Events in an outdated schema are dropped, as at the start of a service."""
    EventStore(paths.events).close()
    return sqlite3.connect(f"{paths.events.absolute().as_uri()}?mode=ro", uri=True)


def _require_own_events(events: sqlite3.Connection, orgs: set[str], paths: Paths) -> None:
    """Raise ConfigurationError if the events and ``orgs`` have no organisation in common.

    In that case, the events belong to another chain. Nothing is checked if either side has no organisation.
    """
    streams = {one for (one,) in events.execute("SELECT DISTINCT org FROM chain_events WHERE org IS NOT NULL")}
    if orgs and streams and not orgs & streams:
        raise ConfigurationError(
            f"{paths.events} holds the events of another chain than {paths.database}. Remove it to read them again"
        )


async def _require_same_chain(settings: Settings, chain: FolderChain) -> None:
    expected, place = chain.identity.genesis_hash, node_name(settings)
    node = SameChain(transport_of(settings.rpc_urls(), expected), expected)
    try:
        await node.genesis_hash()
    except WrongChainError as error:
        of = chain_name(chain.identity.genesis_hash)
        raise ConfigurationError(
            f"{place} cannot be used: {error}. The data folder {settings.data_dir} belongs to {of}"
        ) from None
    except (ChainUnavailable, RpcError) as error:
        raise ConfigurationError(f"no usable response from {place} ({error}): nothing was copied") from None
    finally:
        await node.aclose()


def _copy_files(own: Connection, target: Connection, paths: Paths) -> None:
    """Store the files of exports in the database, because every node serves them from there."""
    for export in with_status(own, "ready"):
        path = paths.exports / f"{export.export_id}.{export.format}"
        if path.is_file():
            with path.open("rb") as file:
                for number, data in enumerate(iter(lambda: file.read(CHUNK), b"")):
                    put_chunk(target, export.export_id, number, data)
