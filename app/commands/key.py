"""`agent-vault keys`: manages API keys on the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click

from app.access.keyring import COMMAND_LINE, KeyRing, system
from app.api.forms import InvalidFormError, validated
from app.api_keys.models import MAX_OVERLAP, CreateKey
from app.commands.command_options import address_of, data_folder, open_database, org_option, settings_of
from app.core.actors import Role
from app.core.errors import NotFoundError
from app.core.timestamps import iso_ms
from app.database.interface import Database
from app.server.data_folder import remembered
from app.store.keys import api_key_by_id, api_keys
from app.store.wallets import has_wallet

_live = click.option(
    "--live", is_flag=True, help="Use the prefix avk_live_ instead of avk_test_. On mainnet this is always the case."
)


@click.group()
def keys() -> None:
    """Manage API keys."""


@contextmanager
def _organisation(data_dir: Path | None, org: str | None) -> Iterator[tuple[Database, KeyRing, str]]:
    """Open the database. Yield it with all its API keys and the address of the organisation ``org``."""
    with open_database(data_dir) as (db, ring):
        yield db, ring, address_of(db, org)


@contextmanager
def _owner(data_dir: Path | None, org: str | None, key_id: str) -> Iterator[tuple[Database, KeyRing, str]]:
    """Open the database. Yield it with all its API keys and the address of the key's organisation.

    ``org`` is optional. If it is given, the key must belong to this organisation.
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
@click.option("--wallet", "wallet_id", help="Wallet to bind an agent's key to.")
@click.option("--name", default="", help="Purpose of the key.")
@click.option("--expires-at", help="Time at which the key stops working, such as 2027-01-31T00:00:00Z.")
@click.option("--allowed-addresses", multiple=True, help="An address or network that may use the key. Repeatable.")
@_live
def create_key(
    *, data_dir: Path | None, org: str | None, live: bool, allowed_addresses: tuple[str, ...], **fields: Any
) -> None:
    """Create a key and print it. It cannot be shown again."""
    try:
        asked = validated(CreateKey, {**fields, "allowed_addresses": [*allowed_addresses] or None})
    except InvalidFormError as error:
        name, message = next(iter(error.messages.items()))
        options = [one.opts[0] for one in click.get_current_context().command.params if one.name == name]
        raise click.ClickException(" ".join([*options, message])) from None
    with _organisation(data_dir, org) as (db, ring, owner):
        wallet_id = asked.wallet_id
        if wallet_id is not None and not db.read_now(lambda conn: has_wallet(conn, owner, wallet_id)):
            raise click.ClickException(f"the organisation has no wallet {wallet_id}")
        terms = {"role": asked.role, "wallet_id": wallet_id, "name": asked.name or "", **asked.restrictions}
        click.echo(ring.create(org=owner, live=live or _is_live(db), **terms))


@keys.command("list")
@data_folder
@org_option
def list_keys(data_dir: Path | None, org: str | None) -> None:
    """List the keys with their last characters. The rest of a key is not stored."""
    with _organisation(data_dir, org) as (db, _ring, owner):
        for key in db.read_now(lambda conn: api_keys(conn, owner)):
            used = "never used" if key.last_used_at is None else f"used {iso_ms(key.last_used_at)}"
            click.echo(
                f"{key.key_id}  {key.role:8}  …{key.hint}  {key.status:7}  {iso_ms(key.created_at)}  "
                f"{used:29}  {key.wallet_id or '-'}  {key.name}"
            )


@keys.command("revoke")
@click.argument("key_id")
@data_folder
@org_option
def revoke_key(key_id: str, data_dir: Path | None, org: str | None) -> None:
    """Revoke a key. A running service refuses it within a second, by default."""
    with _owner(data_dir, org, key_id) as (db, ring, owner):
        db.write_now(lambda conn: ring.revoke(conn, system(owner, COMMAND_LINE), key_id))
        click.echo(f"{key_id} revoked")


@keys.command("rotate")
@click.argument("key_id")
@data_folder
@org_option
@click.option(
    "--overlap", type=click.IntRange(0, MAX_OVERLAP), help="Seconds for which the old key stays valid.  [default: 0]"
)
@_live
def rotate_key(key_id: str, data_dir: Path | None, org: str | None, overlap: int | None, *, live: bool) -> None:
    """Replace a key and print the new one, which cannot be shown again. The old key stays valid during the overlap."""
    seconds = settings_of(key_rotation_overlap=overlap).key_rotation_overlap
    with _owner(data_dir, org, key_id) as (db, ring, owner):
        live = live or _is_live(db)
        by = system(owner, COMMAND_LINE)
        click.echo(db.write_now(lambda conn: ring.rotate(conn, by, key_id, overlap=seconds, live=live)).key)
