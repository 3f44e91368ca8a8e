"""The command line `agent-vault`."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import structlog
from pydantic import ValidationError

from app import demo as demo_story
from app import organisations
from app.bootstrap import ConfigurationError, key_ring, open_localnet, open_state, prepare, running
from app.chain.errors import ChainUnavailable, RpcError
from app.errors import ApiError
from app.keys import KeyRing, Role
from app.localnet import DataDirInUseError
from app.localnet.genesis import USDC_MINT
from app.serve import serve as serve_forever
from app.settings import Settings
from app.signers import KeyFileError
from app.store.database import Database
from app.store.organisations import organisation, organisation_by_id
from app.store.organisations import organisations as all_organisations
from app.store.wallets import wallet
from app.timestamps import iso_ms, now_ms

_data_dir = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Databases and keys.  [default: ./data]"
)


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


def _log_to_stderr(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


@click.group()
@click.version_option(package_name="agent-vault")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
def main(log_level: str) -> None:
    """Vaults from which AI agents pay USDC, guarded by an on-chain program."""
    _log_to_stderr(log_level)


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


@main.group()
def orgs() -> None:
    """Organisations."""


@orgs.command("create")
@click.argument("org_id")
@_data_dir
@click.option("--rpc-url", default="http://127.0.0.1:8899", show_default=True, help="JSON-RPC address of the chain.")
@click.option("--usdc-mint", help="Mint of USDC there; by default the cluster's, or the embedded chain's.")
@click.option(
    "--operator-daily-limit", help="Most USDC that its operator moves into vaults in 24 hours.  [default: 250000]"
)
@click.option("--attestation-delay", type=int, help="Seconds until a recipient counts as registered.  [default: 0]")
def create_org(org_id: str, **given: Any) -> None:
    """Make an organisation on the chain and an admin's key for it."""
    with _errors():
        settings = _settings(**given)
    if settings.usdc_mint is None and settings.cluster == "localnet":
        settings = settings.model_copy(update={"usdc_mint": str(USDC_MINT)})

    async def run() -> None:
        async with running(settings) as service:
            await organisations.ensure_fees(service)
            made = await organisations.create(service, org_id)
            key = service.keys.create(
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
        found = db.read(lambda conn: organisation(conn, named) or organisation_by_id(conn, named))
        if found is None:
            raise click.ClickException(f"there is no organisation {named}")
        return found.org
    every = db.read(all_organisations)
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
        if wallet_id is not None and db.read(lambda conn: wallet(conn, owner, wallet_id, now_ms())) is None:
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

    def work(db: Database, ring: KeyRing) -> None:
        for key in ring.list(_org(db, org)):
            state = "revoked" if key.revoked_at else "active"
            _say(
                f"{key.key_id}  {key.role:8}  …{key.hint}  {state:7}  {iso_ms(key.created_at)}  "
                f"{key.wallet_id or '-'}  {key.name}"
            )

    _with_keys(data_dir, work)


@keys.command("revoke")
@click.argument("key_id")
@_data_dir
@_org_option
def revoke_key(key_id: str, data_dir: Path | None, org: str | None) -> None:
    """Revoke a key; a running service refuses it within a second."""

    def work(db: Database, ring: KeyRing) -> None:
        if not ring.revoke(_org(db, org), key_id):
            raise click.ClickException(f"there is no active key {key_id}")
        _say(f"{key_id} revoked")

    _with_keys(data_dir, work)


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
