"""The command line `agent-vault`."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import TypeAdapter, ValidationError
from solders.pubkey import Pubkey

from app.access.keyring import KeyRing, Role, status_of
from app.api.fields import Name
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.transport import HttpTransport
from app.core import file_lock, logs
from app.core.errors import ApiError
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.core.signers import KeyFileError
from app.core.timestamps import iso_ms, now_ms
from app.exports.exporter import LOCK
from app.keys.models import MAX_OVERLAP
from app.localnet import DataDirInUseError
from app.localnet.genesis import USDC_MINT
from app.organisations import service as organisations
from app.projection.projector import Projector
from app.server import _demo
from app.server.bootstrap import key_ring, open_localnet, open_state, prepare, running
from app.server.serve import LOCALHOST
from app.server.serve import serve as serve_forever
from app.store.database import Database
from app.store.keys import api_keys
from app.store.organisations import organisation, organisation_by_id
from app.store.organisations import organisations as all_organisations
from app.store.wallets import wallet
from app.verifier.history import IncompleteError
from app.verifier.verify import VerificationReport, verify
from indexer import EventStore, StoredEvent

_data_dir = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Databases and keys.  [default: ./data]"
)
_host = click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
_rpc_url = click.option("--rpc-url", help="JSON-RPC address of the chain.  [default: the embedded chain's]")
_usdc_mint = click.option("--usdc-mint", help="Mint of USDC there.  [default: the cluster's or the embedded chain's]")
_org = click.option("--org", help="Id or address of the organisation; not needed if there is only one.")
_live = click.option("--live", is_flag=True, help="Prefix avk_live_ instead of avk_test_.")

_KEY_NAME: TypeAdapter[str] = TypeAdapter(Name)
_EXPECTED = (
    ConfigurationError,
    ValidationError,
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
        except _EXPECTED as error:
            raise click.ClickException(str(error)) from None


def _settings(**given: Any) -> Settings:
    return Settings(**{name: value for name, value in given.items() if value is not None})


@click.group(cls=_Commands)
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Vaults from which AI agents pay USDC, guarded by an on-chain program."""
    logs.configure(log_level, sys.stderr)


@main.command()
@_data_dir
@_host
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.  [default: 8402]")
@click.option(
    "--localnet-port",
    type=click.IntRange(1, 65534),
    help="JSON-RPC port of the embedded chain; its WebSocket uses the next one.  [default: 8899]",
)
@click.option("--rpc-url", help="JSON-RPC address of a cluster to use instead of the embedded chain.")
@_usdc_mint
def serve(**given: Any) -> None:
    """Serve the API, with an embedded chain unless --rpc-url names another."""
    asyncio.run(serve_forever(_settings(**given), click.echo))


@main.command()
def demo() -> None:
    """Show everything in one process: a policy, a wallet, funds, payments, a refusal, a freeze."""
    asyncio.run(_demo.run(click.echo))


@main.command()
@_data_dir
@_host
@click.option("--port", "localnet_port", type=click.IntRange(1, 65534), help="JSON-RPC port.  [default: 8899]")
def localnet(**given: Any) -> None:
    """Run the embedded chain alone."""
    settings = _settings(**given)

    async def run() -> None:
        prepare(settings)
        async with open_localnet(settings) as chain, chain.serving(settings.host, settings.localnet_port):
            port = settings.localnet_port
            click.echo(f"Embedded chain on http://{settings.host}:{port} and ws://{settings.host}:{port + 1}")
            click.echo(f"USDC mint: {chain.usdc_mint}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@main.command()
@_data_dir
@_rpc_url
@_usdc_mint
def keeper(**given: Any) -> None:
    """Run the keeper alone, on the service's data: refunds, freezes of expired policies, top-ups."""
    settings = sidecar_settings(_settings(**given), keeper=True)

    async def run() -> None:
        async with running(settings):
            click.echo(f"Keeper at work on {settings.rpc_url}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


def sidecar_settings(settings: Settings, *, keeper: bool) -> Settings:
    """Return the settings of a process that works on a service's data, whether the service runs or not.

    Webhooks and alerts are left to the service, for only one process may send them. Without an address, the chain is
    the one that the service embeds.
    """
    changes: dict[str, Any] = {"keeper": keeper, "webhooks": False, "alerts": False}
    if settings.rpc_url is None:
        changes["rpc_url"] = f"http://{LOCALHOST}:{settings.localnet_port}"
    if settings.usdc_mint is None and settings.cluster == "localnet":
        changes["usdc_mint"] = str(USDC_MINT)
    return settings.model_copy(update=changes)


@main.command()
@_data_dir
def rebuild(data_dir: Path | None) -> None:
    """Rebuild the read models from the stored events of the chain, while the service is stopped."""
    paths = Paths(_settings(data_dir=data_dir).data_dir)
    if not paths.exports.is_dir():
        raise click.ClickException(f"there is no service's data in {paths.root}")
    # A running service holds this lock: meanwhile it would show incomplete data.
    lock = file_lock.take(paths.exports / LOCK)
    if lock is None:
        raise click.ClickException(f"a service runs on {paths.root}; stop it first")
    with lock, closing(Database(paths.database)) as db, closing(EventStore(paths.events)) as events:

        async def changes(after: int, limit: int) -> list[StoredEvent]:
            return events.changes(after, limit)

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

    async def run() -> VerificationReport:
        async with aclosing(HttpTransport(rpc_url)) as transport:
            return await verify(export, transport, Pubkey.from_string(program_id) if program_id else None)

    try:
        report = asyncio.run(run())
    except (*_EXPECTED, IncompleteError, ValueError) as error:
        raise _UndecidedError(str(error)) from None
    for line in report.lines():
        # The file may come from anybody: nothing in it may control the terminal.
        click.echo("".join(character if character.isprintable() else "?" for character in line))
    sys.exit(1 if report.problems else 0)


@main.group()
def orgs() -> None:
    """Organisations."""


@orgs.command("create")
@click.argument("org_id")
@_data_dir
@_rpc_url
@_usdc_mint
@click.option(
    "--operator-daily-limit", help="Most USDC that its operator may move into vaults in 24 hours.  [default: 250000]"
)
@click.option("--attestation-delay", type=int, help="Seconds until a recipient counts as registered.  [default: 0]")
def create_org(org_id: str, **given: Any) -> None:
    """Create an organisation on the chain, and an admin key for it."""
    settings = sidecar_settings(_settings(**given), keeper=False)

    async def run() -> None:
        async with running(settings) as service:
            await organisations.ensure_fees(service)
            made = await organisations.create(service, org_id)
            key = service.part(KeyRing).create(
                org=made.org, role="admin", wallet_id=None, name="orgs create", live=settings.cluster == "mainnet-beta"
            )
        click.echo(f"Organisation {org_id}: {made.org}")
        click.echo(f"Deposit USDC (mint {made.mint}) into its reserve: {made.reserve}")
        click.echo(f"Admin API key, shown only once: {key}")

    asyncio.run(run())


@main.group()
def keys() -> None:
    """Manage API keys."""


@contextmanager
def _open(data_dir: Path | None, org: str | None) -> Iterator[tuple[Database, KeyRing, str]]:
    """Open the database and its keys; yields them with the address of the organisation that ``org`` names."""
    db, _signers, secret = open_state(prepare(_settings(data_dir=data_dir)))
    with closing(db):
        yield db, key_ring(db, secret), _address_of(db, org)


def _address_of(db: Database, org: str | None) -> str:
    """Return the address of an organisation by its id or address, or of the only one there is."""
    if org is not None:
        found = db.read_now(lambda conn: organisation(conn, org) or organisation_by_id(conn, org))
        if found is None:
            raise click.ClickException(f"there is no organisation {org}")
        return found.org
    every = db.read_now(all_organisations)
    if len(every) != 1:
        raise click.ClickException("name the organisation with --org: " + ", ".join(one.org_id for one in every))
    return every[0].org


@keys.command("create")
@_data_dir
@_org
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--wallet", "wallet_id", help="The wallet that an agent's key is bound to.")
@click.option("--name", default="", help="What the key is for.")
@_live
def create_key(
    *, data_dir: Path | None, org: str | None, role: Role, wallet_id: str | None, name: str, live: bool
) -> None:
    """Create a key and print it, only once."""
    with _open(data_dir, org) as (db, ring, owner):
        if wallet_id is not None and db.read_now(lambda conn: wallet(conn, owner, wallet_id, now_ms())) is None:
            raise click.ClickException(f"the organisation has no wallet {wallet_id}")
        try:
            named = _KEY_NAME.validate_python(name) if name else ""
            click.echo(ring.create(org=owner, role=role, wallet_id=wallet_id, name=named, live=live))
        except ValidationError as error:
            raise click.ClickException(f"--name {error.errors()[0]['msg']}") from None
        except ValueError as error:
            raise click.ClickException(str(error)) from None


@keys.command("list")
@_data_dir
@_org
def list_keys(data_dir: Path | None, org: str | None) -> None:
    """List the keys; only their last characters are known."""
    with _open(data_dir, org) as (db, _ring, owner):
        for key in db.read_now(lambda conn: api_keys(conn, owner)):
            used = "never used" if key.last_used_at is None else f"used {iso_ms(key.last_used_at)}"
            click.echo(
                f"{key.key_id}  {key.role:8}  …{key.hint}  {status_of(key, now_ms()):7}  {iso_ms(key.created_at)}  "
                f"{used:29}  {key.wallet_id or '-'}  {key.name}"
            )


@keys.command("revoke")
@click.argument("key_id")
@_data_dir
@_org
def revoke_key(key_id: str, data_dir: Path | None, org: str | None) -> None:
    """Revoke a key; a running service refuses it within a second."""
    with _open(data_dir, org) as (db, ring, owner):
        db.write_now(lambda conn: ring.revoke(conn, owner, key_id))
        click.echo(f"{key_id} revoked")


@keys.command("rotate")
@click.argument("key_id")
@_data_dir
@_org
@click.option(
    "--overlap", type=click.IntRange(0, MAX_OVERLAP), help="Seconds for which the old key works on.  [default: 0]"
)
@_live
def rotate_key(key_id: str, data_dir: Path | None, org: str | None, overlap: int | None, *, live: bool) -> None:
    """Replace a key and print the new one, only once; the old one stops, or works for the overlap."""
    seconds = _settings(key_rotation_overlap=overlap).key_rotation_overlap
    with _open(data_dir, org) as (db, ring, owner):
        click.echo(db.write_now(lambda conn: ring.rotate(conn, owner, key_id, overlap=seconds, live=live)).key)
