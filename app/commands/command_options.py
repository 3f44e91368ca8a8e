"""Shared parts of the commands: options, settings, and access to a service's database."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import COMMAND_LINE, KeyRing, system
from app.core.money import InvalidAmountError, parse_usdc
from app.core.settings import Settings
from app.database.interface import Database
from app.server.bootstrap import key_ring, open_state
from app.server.data_folder import require_data
from app.store.audit import append
from app.store.audit_actions import Action
from app.store.organisations import organisation, organisation_by_id
from app.store.organisations import organisations as all_organisations

data_folder = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the databases and keys.  [default: ./data]",
)
_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)


def _several(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> str | None:
    return ",".join(given) if given else None


def node_option(text: str) -> Callable[[_Command], _Command]:
    """Return the option for the addresses of the chain's nodes. Its help begins with `text`."""
    return click.option("--rpc-url", multiple=True, callback=_several, help=f"{text} Repeat it for several nodes.")


rpc_url = node_option("JSON-RPC address of the chain. The default is the data folder's chain.")
org_option = click.option(
    "--org", help="Id or address of the organisation. Optional if there is only one, or if you pass a KEY_ID."
)
usdc_mint = click.option("--usdc-mint", help="USDC mint on this chain.  [default: the data folder's or the cluster's]")


def settings_of(**given: Any) -> Settings:
    """Return the settings from the environment. Given options that are not None replace them."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def address_argument(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Pubkey | None:
    """Parse an address in base58."""
    try:
        return None if text is None else Pubkey.from_string(text)
    except ValueError:
        raise click.BadParameter(f"{text} is not an address") from None


def usdc_argument(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """Parse an amount of USDC and return micro-USDC."""
    try:
        return parse_usdc(text)
    except InvalidAmountError as error:
        raise click.BadParameter(f"{text}: {error}") from None


@contextmanager
def open_database(data_dir: Path | None) -> Iterator[tuple[Database, KeyRing]]:
    """Open the database of a service with its API keys.

    Raises ConfigurationError if there is no database, and KeyFileError if the service's secret is missing or does not
    belong to the database.
    """
    settings = settings_of(data_dir=data_dir)
    require_data(settings)
    db, secret = open_state(settings)
    with closing(db):
        yield db, key_ring(db, secret)


def address_of(db: Database, org: str | None) -> str:
    """Return the address of the organisation with this id or address, or of the only organisation if `org` is None."""
    if org is not None:
        found = db.read_now(lambda conn: organisation(conn, org) or organisation_by_id(conn, org))
        if found is None:
            raise click.ClickException(f"there is no organisation {org}")
        return found.org
    every = db.read_now(all_organisations)
    if len(every) != 1:
        named = ", ".join(one.org_id for one in every)
        raise click.ClickException(
            f"choose an organisation with --org: {named}" if named else "there is no organisation yet"
        )
    return every[0].org


def record_for_all(conn: Connection, action: Action, **details: Any) -> None:
    """Record an action of the command line in the audit log of every organisation."""
    for one in all_organisations(conn):
        append(conn, system(one.org, COMMAND_LINE).entry(action, **details))
