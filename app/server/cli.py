"""The command line `agent-vault`."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import ValidationError
from solders.pubkey import Pubkey

from app.access.keyring import KeyRing, Role, status_of
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.transport import HttpTransport
from app.core import file_lock as locks
from app.core import logs
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
from app.server import demo as demo_story
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
_chain_url = click.option("--rpc-url", help="JSON-RPC address of the chain.  [default: the embedded chain's]")


def _settings(**given: Any) -> Settings:
    return Settings(**{name: value for name, value in given.items() if value is not None})


_FORESEEN = (
    ConfigurationError,
    ValidationError,
    KeyFileError,
    DataDirInUseError,
    OSError,
    ApiError,
    ChainUnavailable,
    RpcError,
)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except _FORESEEN as error:
        raise click.ClickException(str(error)) from None


@click.group()
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Vaults from which AI agents pay USDC, guarded by an on-chain program."""
    logs.configure(log_level, sys.stderr)


@main.command()
@_data_dir
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.  [default: 8402]")
@click.option(
    "--localnet-port",
    type=click.IntRange(1, 65534),
    help="JSON-RPC port of the embedded chain; WebSocket one above.  [default: 8899]",
)
@click.option("--rpc-url", help="JSON-RPC address of a cluster, instead of the embedded chain.")
@click.option("--usdc-mint", help="Mint of USDC there; by default the cluster's.")
def serve(**given: Any) -> None:
    """Serve the API, with an embedded chain unless --rpc-url names another."""
    with _errors():
        asyncio.run(serve_forever(_settings(**given), _say))


@main.command()
def demo() -> None:
    """Tell the whole story in one process: policy, wallet, funds, payments, a refusal, a freeze."""
    with _errors():
        asyncio.run(demo_story.tell(_say))


@main.command()
@_data_dir
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", "localnet_port", type=click.IntRange(1, 65534), help="JSON-RPC port.  [default: 8899]")
def localnet(**given: Any) -> None:
    """Run the embedded chain alone."""
    settings = _settings(**given)

    async def run() -> None:
        prepare(settings)
        async with open_localnet(settings) as chain, chain.serving(settings.host, settings.localnet_port):
            port = settings.localnet_port
            _say(f"Embedded chain on http://{settings.host}:{port} and ws://{settings.host}:{port + 1}")
            _say(f"USDC mint: {chain.usdc_mint}")
            await asyncio.Event().wait()

    with _errors(), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


@main.command()
@_data_dir
@_chain_url
@click.option("--usdc-mint", help="Mint of USDC there; by default the cluster's, or the embedded chain's.")
def keeper(**given: Any) -> None:
    """Run the keeper alone, on the service's data: refunds, freezes of expired policies, top-ups."""
    with _errors():
        settings = beside_the_service(_settings(**given), keeper=True)

    async def run() -> None:
        async with running(settings):
            _say(f"Keeper at work on {settings.rpc_url}")
            await asyncio.Event().wait()

    with _errors(), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def beside_the_service(settings: Settings, *, keeper: bool) -> Settings:
    """Return the settings of a process that works on a service's data, whether that runs or not.

    Webhooks and alerts stay the service's, which alone may send them. The chain is reached by address, that of the
    service's embedded chain where none is set.
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
    """Make the read models anew from the stored events of the chain, while the service is stopped."""
    settings = _settings(data_dir=data_dir)
    paths = Paths(settings.data_dir)
    with _errors():
        if not paths.exports.is_dir():
            raise click.ClickException(f"there is no data of a service in {paths.root}")
        # The service has it from its start on: what it shows meanwhile would be incomplete.
        lock = locks.take(paths.exports / LOCK)
        if lock is None:
            raise click.ClickException(f"a service is at work on {paths.root}; stop it first")
        with lock:
            db, events = Database(paths.database), EventStore(paths.events)

            async def changes(after: int, limit: int) -> list[StoredEvent]:
                return events.changes(after, limit)

            try:
                asyncio.run(Projector(db, changes).rebuild())
            finally:
                events.close()
                db.close()
    _say("Rebuilt.")


class _UndecidedError(click.ClickException):
    """Neither yes nor no."""

    exit_code = 2


@main.command("verify")
@click.argument("export", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rpc-url", required=True, help="JSON-RPC address of a node that has the whole history.")
@click.option("--program-id", help="Address of the program that is trusted; by default the one of this version.")
def verify_export(export: Path, rpc_url: str, program_id: str | None) -> None:
    """Check an exported CSV or JSON file against the chain alone, without the service.

    Ends with 0 when every row of the chain is as the file has it, with 1 when there is a difference, a missing or an
    added row included, and with 2 when it cannot be found out.
    """

    async def run() -> VerificationReport:
        transport = HttpTransport(rpc_url)
        try:
            return await verify(export, transport, Pubkey.from_string(program_id) if program_id else None)
        finally:
            await transport.aclose()

    try:
        report = asyncio.run(run())
    except (*_FORESEEN, IncompleteError, ValueError) as error:
        raise _UndecidedError(str(error)) from None
    for line in report.lines():
        # The file may be anybody's: nothing in it is to steer the terminal.
        _say("".join(character if character.isprintable() else "?" for character in line))
    sys.exit(1 if report.problems else 0)


@main.group()
def orgs() -> None:
    """Organisations."""


@orgs.command("create")
@click.argument("org_id")
@_data_dir
@_chain_url
@click.option("--usdc-mint", help="Mint of USDC there; by default the cluster's, or the embedded chain's.")
@click.option(
    "--operator-daily-limit", help="Most USDC that its operator moves into vaults in 24 hours.  [default: 250000]"
)
@click.option("--attestation-delay", type=int, help="Seconds until a recipient counts as registered.  [default: 0]")
def create_org(org_id: str, **given: Any) -> None:
    """Make an organisation on the chain and an admin's key for it."""
    with _errors():
        settings = beside_the_service(_settings(**given), keeper=False)

    async def run() -> None:
        async with running(settings) as service:
            await organisations.ensure_fees(service)
            made = await organisations.create(service, org_id)
            key = service.part(KeyRing).create(
                org=made.org, role="admin", wallet_id=None, name="orgs create", live=settings.cluster == "mainnet-beta"
            )
        _say(f"Organisation {org_id}: {made.org}")
        _say(f"Deposit USDC (mint {made.mint}) into its reserve: {made.reserve}")
        _say(f"Admin API key, shown this once: {key}")

    with _errors():
        asyncio.run(run())


@main.group()
def keys() -> None:
    """Manage API keys."""


def _with_keys(data_dir: Path | None, work: Callable[[Database, KeyRing], None]) -> None:
    with _errors():
        db, _signers, secret = open_state(prepare(_settings(data_dir=data_dir)))
        try:
            work(db, key_ring(db, secret))
        finally:
            db.close()


def _org(db: Database, named: str | None) -> str:
    """Return the organisation that an id or an address names; without one the only one there is."""
    if named is not None:
        found = db.read_now(lambda conn: organisation(conn, named) or organisation_by_id(conn, named))
        if found is None:
            raise click.ClickException(f"there is no organisation {named}")
        return found.org
    every = db.read_now(all_organisations)
    if len(every) != 1:
        raise click.ClickException("name the organisation with --org: " + ", ".join(one.org_id for one in every))
    return every[0].org


_org_option = click.option("--org", help="Id or address of the organisation; not needed where there is one only.")


@keys.command("create")
@_data_dir
@_org_option
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--wallet", "wallet_id", help="The wallet of an agent's key.")
@click.option("--name", default="", help="What the key is for.")
@click.option("--live", is_flag=True, help="Prefix avk_live_ instead of avk_test_.")
def create_key(
    *, data_dir: Path | None, org: str | None, role: Role, wallet_id: str | None, name: str, live: bool
) -> None:
    """Make a key and print it, this once."""

    def work(db: Database, ring: KeyRing) -> None:
        owner = _org(db, org)
        if wallet_id is not None and db.read_now(lambda conn: wallet(conn, owner, wallet_id, now_ms())) is None:
            raise click.ClickException(f"the organisation has no wallet {wallet_id}")
        try:
            _say(ring.create(org=owner, role=role, wallet_id=wallet_id, name=name, live=live))
        except ValueError as error:
            raise click.ClickException(str(error)) from None

    _with_keys(data_dir, work)


@keys.command("list")
@_data_dir
@_org_option
def list_keys(data_dir: Path | None, org: str | None) -> None:
    """List the keys; of the keys themselves only their last characters are known."""

    def work(db: Database, _ring: KeyRing) -> None:
        owner = _org(db, org)
        for key in db.read_now(lambda conn: api_keys(conn, owner)):
            used = "never used" if key.last_used_at is None else f"used {iso_ms(key.last_used_at)}"
            _say(
                f"{key.key_id}  {key.role:8}  …{key.hint}  {status_of(key, now_ms()):7}  {iso_ms(key.created_at)}  "
                f"{used:29}  {key.wallet_id or '-'}  {key.name}"
            )

    _with_keys(data_dir, work)


@keys.command("revoke")
@click.argument("key_id")
@_data_dir
@_org_option
def revoke_key(key_id: str, data_dir: Path | None, org: str | None) -> None:
    """Revoke a key; a running service refuses it within a second."""

    def work(db: Database, ring: KeyRing) -> None:
        owner = _org(db, org)
        db.write_now(lambda conn: ring.revoke(conn, owner, key_id))
        _say(f"{key_id} revoked")

    _with_keys(data_dir, work)


@keys.command("rotate")
@click.argument("key_id")
@_data_dir
@_org_option
@click.option(
    "--overlap", type=click.IntRange(0, MAX_OVERLAP), help="Seconds for which the old key works on.  [default: 86400]"
)
@click.option("--live", is_flag=True, help="Prefix avk_live_ instead of avk_test_.")
def rotate_key(key_id: str, data_dir: Path | None, org: str | None, overlap: int | None, *, live: bool) -> None:
    """Make a new key for the same use and print it, this once; the old one works on for a while."""
    seconds = _settings(key_rotation_overlap=overlap).key_rotation_overlap

    def work(db: Database, ring: KeyRing) -> None:
        owner = _org(db, org)
        _say(db.write_now(lambda conn: ring.rotate(conn, owner, key_id, overlap=seconds, live=live)).key)

    _with_keys(data_dir, work)


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
