"""`agent-vault people`: invites and lists the people who may sign in to the dashboard."""

from pathlib import Path
from typing import get_args

import click
from pydantic import ValidationError

from app.access.keyring import COMMAND_LINE, system
from app.commands.command_options import address_of, data_folder, open_database, settings_of
from app.core.timestamps import iso_ms, now_ms
from app.people import service
from app.people.models import InvitePerson, PersonRole
from app.people.relying_party import dashboard_url
from app.store.people import people_of


@click.group()
def people() -> None:
    """Manage people who sign in to the dashboard."""


@people.command("invite")
@click.argument("org")
@data_folder
@click.option("--role", type=click.Choice(get_args(PersonRole)), default="admin", show_default=True)
@click.option("--name", default="Admin", show_default=True, help="Name of the invited person.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of `serve`.  [default: 8402]")
def invite(org: str, data_dir: Path | None, role: PersonRole, name: str, port: int | None) -> None:
    """Print a link that lets one person join an organisation. The link works once and expires after 72 hours."""
    url = dashboard_url(settings_of(data_dir=data_dir, port=port))
    try:
        body = InvitePerson(name=name, role=role)
    except ValidationError as error:
        raise click.ClickException(f"--name {error.errors()[0]['msg']}") from None
    with open_database(data_dir) as (db, _ring):
        by = system(address_of(db, org), COMMAND_LINE)
        made = db.write_now(lambda conn: service.invite(conn, by, body.name, body.role, now_ms()))
    click.echo(f"{url}/join#{made.token}")


@people.command("list")
@click.argument("org")
@data_folder
def list_people(org: str, data_dir: Path | None) -> None:
    """List the people of an organisation."""
    with open_database(data_dir) as (db, _ring):
        for one in db.read_now(lambda conn: people_of(conn, address_of(db, org))):
            click.echo(f"{one.person_id}  {one.role:8}  {iso_ms(one.created_at)}  {one.name}")
