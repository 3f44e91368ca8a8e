"""The command line `agent-vault`."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import TypeAdapter, ValidationError

from app.access.keyring import COMMAND_LINE, KeyRing, Role, status_of, system
from app.api.fields import Name
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.transport import HttpTransport
from app.core import file_lock, logs
from app.core.errors import ApiError, NotFoundError
from app.core.paths import ConfigurationError
from app.core.signers import KeyFileError
from app.core.timestamps import iso_ms, now_ms
from app.exports.exporter import LOCK
from app.keys.models import MAX_OVERLAP
from app.localnet import DataDirInUseError
from app.projection.projector import Projector
from app.recipients.service import parse_address
from app.server import _demo
from app.server._audit_commands import audit
from app.server._backup_commands import backup, restore
from app.server._command_options import (
    address_of,
    data_folder,
    open_database,
    org_option,
    rpc_url,
    settings_of,
    usdc_mint,
)
from app.server._data_folder import beside_service, node_name, remembered, with_folder
from app.server._database_commands import database
from app.server._databases import may_have_data, open_events
from app.server._faucet_command import faucet
from app.server._mcp_command import mcp
from app.server._org_commands import orgs
from app.server._people_commands import people
from app.server._role_commands import roles
from app.server._sidecar import running_sidecar
from app.server._sign_command import sign
from app.server.bootstrap import open_localnet, open_state, prepare
from app.server.serve import serve as serve_forever
from app.server.serve import serve_chain
from app.store.database import Database
from app.store.keys import api_key_by_id, api_keys
from app.store.leases import living_nodes
from app.store.wallets import has_wallet
from app.verifier.history import IncompleteError
from app.verifier.verify import VerificationReport, verify
from indexer import StoredEvent

_live = click.option("--live", is_flag=True, help="Prefix avk_live_ instead of avk_test_; always so on mainnet.")
_host = click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")

_KEY_NAME: TypeAdapter[str] = TypeAdapter(Name)
_EXPECTED = (
    ConfigurationError,
    KeyFileError,
    DataDirInUseError,
    OSError,
    ApiError,
    ChainUnavailable,
    RpcError,
)


class _Commands(click.Group):
    """Prints errors that users can cause in one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValidationError as error:
            faults = (f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors())
            raise click.ClickException("; ".join(faults)) from None
        except _EXPECTED as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands)
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Vaults from which AI agents pay USDC, guarded by an on-chain program."""
    logs.configure(log_level, sys.stderr)


@main.command()
@data_folder
@_host
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.  [default: 8402]")
@click.option(
    "--localnet-port",
    type=click.IntRange(1, 65534),
    help="JSON-RPC port of the embedded chain; its WebSocket uses the next one.  [default: 8899]",
)
@click.option("--rpc-url", help="JSON-RPC address of a cluster to use instead of the embedded chain.")
@usdc_mint
@click.option("--roles", help="What this node does, on PostgreSQL.  [default: api,indexer,worker]")
def serve(**given: Any) -> None:
    """Serve the API, with an embedded chain unless --rpc-url names another."""
    asyncio.run(serve_forever(with_folder(settings_of(**given)), click.echo))


@main.command()
def demo() -> None:
    """Show everything in one process: a policy, a wallet, funds, payments, a refusal, a freeze."""
    asyncio.run(_demo.run(click.echo))


@main.command()
@data_folder
@_host
@click.option("--port", "localnet_port", type=click.IntRange(1, 65534), help="JSON-RPC port.  [default: 8899]")
def localnet(**given: Any) -> None:
    """Run the embedded chain alone."""
    settings = with_folder(settings_of(**given).model_copy(update={"rpc_url": None}))

    async def run() -> None:
        prepare(settings)
        async with open_localnet(settings) as chain, AsyncExitStack() as stack:
            await serve_chain(stack, chain, settings, settings.host, "--port")
            port = settings.localnet_port
            click.echo(f"Embedded chain on http://{settings.host}:{port} and ws://{settings.host}:{port + 1}")
            click.echo(f"USDC mint: {chain.usdc_mint}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@main.command()
@data_folder
@rpc_url
@usdc_mint
def keeper(**given: Any) -> None:
    """Run the keeper alone, on the service's data: refunds, freezes of expired policies, top-ups."""
    settings = beside_service(settings_of(**given, keeper=True))

    async def run() -> None:
        async with running_sidecar(settings):
            click.echo(f"Keeper at work on {node_name(settings)}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@main.command()
@data_folder
def rebuild(data_dir: Path | None) -> None:
    """Rebuild the read models from the stored events of the chain, while the service is stopped."""
    settings = settings_of(data_dir=data_dir)
    paths = settings.paths()
    if not may_have_data(settings):
        raise click.ClickException(f"there is no service's data in {paths.root}")
    paths.exports.mkdir(mode=0o700, exist_ok=True)
    # What runs on this data holds one of these locks: meanwhile it would read incomplete data.
    with ExitStack() as stack:
        for path in (paths.exports / LOCK, paths.sidecars):
            if (lock := file_lock.take(path)) is None:
                raise click.ClickException(f"a service or keeper runs on {paths.root}; stop it first")
            stack.enter_context(lock)
        db = stack.enter_context(closing(open_state(settings)[0]))
        if db.node and (nodes := db.read_now(living_nodes)):
            raise click.ClickException(f"{nodes} nodes serve on the {db.name}; stop them first")
        events = stack.enter_context(closing(open_events(settings, db)))

        async def changes(after: int, limit: int) -> list[StoredEvent]:
            return await events.read(lambda store: store.changes(after, limit))

        asyncio.run(Projector(db, changes).rebuild())
    click.echo("Rebuilt.")


class _UndecidedError(click.ClickException):
    """The verification has no result."""

    exit_code = 2


@main.command("verify")
@click.argument("export", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rpc-url", required=True, help="JSON-RPC address of a node that has the whole history.")
@click.option("--program-id", help="Address of the trusted program.  [default: this version's]")
def verify_export(export: Path, rpc_url: str, program_id: str | None) -> None:
    """Check an exported CSV or JSON file against the chain alone, without the service.

    Exits with 0 if the file has exactly the rows of the chain, with 1 if any row differs, is missing or was added, and
    with 2 if that cannot be determined.
    """
    if (program := parse_address(program_id or "")) is None and program_id is not None:
        raise _UndecidedError("--program-id: must be an address in base58")

    async def run() -> VerificationReport:
        async with aclosing(HttpTransport(rpc_url)) as transport:
            return await verify(export, transport, program)

    try:
        report = asyncio.run(run())
    except (*_EXPECTED, IncompleteError, ValueError) as error:
        raise _UndecidedError(str(error)) from None
    for line in report.lines():
        # The file may come from anybody: nothing in it may control the terminal.
        click.echo("".join(character if character.isprintable() else "?" for character in line))
    sys.exit(1 if report.problems else 0)


@main.group()
def keys() -> None:
    """Manage API keys."""


@contextmanager
def _organisation(data_dir: Path | None, org: str | None) -> Iterator[tuple[Database, KeyRing, str]]:
    """Open the database; yields it with the keys and the address of the organisation that ``org`` names."""
    with open_database(data_dir) as (db, ring):
        yield db, ring, address_of(db, org)


@contextmanager
def _owner(data_dir: Path | None, org: str | None, key_id: str) -> Iterator[tuple[Database, KeyRing, str]]:
    """Open the database; yields it with the keys and the address of the key's organisation.

    ``org`` is not needed; if it is given, the key must be that organisation's.
    """
    with open_database(data_dir) as (db, ring):
        key = db.read_now(lambda conn: api_key_by_id(conn, key_id))
        if key is None or (org is not None and address_of(db, org) != key.org):
            raise NotFoundError("key_not_found")
        yield db, ring, key.org


def _is_live(db: Database) -> bool:
    chain = db.read_now(remembered)
    return chain is not None and chain.identity.cluster == "mainnet-beta"


@keys.command("create")
@data_folder
@org_option
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--wallet", "wallet_id", help="The wallet that an agent's key is bound to.")
@click.option("--name", default="", help="What the key is for.")
@_live
def create_key(
    *, data_dir: Path | None, org: str | None, role: Role, wallet_id: str | None, name: str, live: bool
) -> None:
    """Create a key and print it, only once."""
    with _organisation(data_dir, org) as (db, ring, owner):
        if wallet_id is not None and not db.read_now(lambda conn: has_wallet(conn, owner, wallet_id)):
            raise click.ClickException(f"the organisation has no wallet {wallet_id}")
        try:
            named = _KEY_NAME.validate_python(name) if name else ""
            live = live or _is_live(db)
            click.echo(ring.create(org=owner, role=role, wallet_id=wallet_id, name=named, live=live))
        except ValidationError as error:
            raise click.ClickException(f"--name {error.errors()[0]['msg']}") from None
        except ValueError as error:
            raise click.ClickException(str(error)) from None


@keys.command("list")
@data_folder
@org_option
def list_keys(data_dir: Path | None, org: str | None) -> None:
    """List the keys; only their last characters are known."""
    with _organisation(data_dir, org) as (db, _ring, owner):
        for key in db.read_now(lambda conn: api_keys(conn, owner)):
            used = "never used" if key.last_used_at is None else f"used {iso_ms(key.last_used_at)}"
            click.echo(
                f"{key.key_id}  {key.role:8}  …{key.hint}  {status_of(key, now_ms()):7}  {iso_ms(key.created_at)}  "
                f"{used:29}  {key.wallet_id or '-'}  {key.name}"
            )


@keys.command("revoke")
@click.argument("key_id")
@data_folder
@org_option
def revoke_key(key_id: str, data_dir: Path | None, org: str | None) -> None:
    """Revoke a key; a running service refuses it within a second."""
    with _owner(data_dir, org, key_id) as (db, ring, owner):
        db.write_now(lambda conn: ring.revoke(conn, system(owner, COMMAND_LINE), key_id))
        click.echo(f"{key_id} revoked")


@keys.command("rotate")
@click.argument("key_id")
@data_folder
@org_option
@click.option(
    "--overlap", type=click.IntRange(0, MAX_OVERLAP), help="Seconds for which the old key works on.  [default: 0]"
)
@_live
def rotate_key(key_id: str, data_dir: Path | None, org: str | None, overlap: int | None, *, live: bool) -> None:
    """Replace a key and print the new one, only once; the old one stops, or works for the overlap."""
    seconds = settings_of(key_rotation_overlap=overlap).key_rotation_overlap
    with _owner(data_dir, org, key_id) as (db, ring, owner):
        live = live or _is_live(db)
        by = system(owner, COMMAND_LINE)
        click.echo(db.write_now(lambda conn: ring.rotate(conn, by, key_id, overlap=seconds, live=live)).key)


main.add_command(orgs)
main.add_command(people)
main.add_command(database)
main.add_command(backup)
main.add_command(restore)
main.add_command(faucet)
main.add_command(mcp)
main.add_command(audit)
main.add_command(sign)
main.add_command(roles)
