"""`agent-vault orgs`: creates and lists organisations, and withdraws from their reserves."""

from pathlib import Path
from typing import Any

import click
from solders.pubkey import Pubkey

from app.access.keyring import KeyRing
from app.commands._sidecar import on_service
from app.commands.command_options import address_argument, data_folder, open_database, rpc_url, settings_of, usdc_mint
from app.commands.role import amount_argument, change_options, withdraw_from_reserve
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.organisations import service as organisations
from app.server.data_folder import sidecar_settings
from app.store.organisations import Organisation, reserve
from app.store.organisations import organisations as all_organisations
from app.submission.context import Service


@click.group()
def orgs() -> None:
    """Create and list organisations, and withdraw from their reserves."""


@orgs.command("create")
@click.argument("org_id")
@data_folder
@rpc_url
@usdc_mint
@click.option(
    "--operator-daily-limit", help="Maximum USDC that the operator may move into vaults in 24 hours.  [default: 250000]"
)
@click.option(
    "--attestation-delay", type=int, help="Seconds before a recipient's registration takes effect.  [default: 0]"
)
def create_org(org_id: str, **given: Any) -> None:
    """Create an organisation on the chain and an admin key for it. ORG_ID has 1 to 64 characters of a-z, 0-9, -.

    If the organisation exists, it only gets another admin key.
    """
    organisations.check_id(org_id)

    async def create(service: Service) -> tuple[Organisation, str]:
        await organisations.ensure_fees(service)
        made = await organisations.create(service, org_id)
        live = service.identity.cluster == "mainnet-beta"
        return made, service.part(KeyRing).create(org=made.org, role="admin", name="orgs create", live=live)

    made, key = on_service(sidecar_settings(settings_of(**given, keeper=False)), create)
    click.echo(f"Organisation {org_id}: {made.org}")
    click.echo(f"Deposit USDC (mint {made.mint}) into its reserve: {made.reserve}")
    click.echo(f"Admin API key, shown only once: {key}")


@orgs.command("withdraw")
@click.argument("amount", callback=amount_argument)
@click.argument("address", callback=address_argument)
@change_options
def withdraw(amount: int | None, address: Pubkey, **given: Any) -> None:
    """Move AMOUNT of USDC, or `all`, from the reserve to the USDC account that ADDRESS owns. The authority signs."""
    withdraw_from_reserve(amount, address, **given)


@orgs.command("list")
@data_folder
def list_orgs(data_dir: Path | None) -> None:
    """List the organisations: id, time of creation, address, reserve and its balance."""
    with open_database(data_dir) as (db, _ring):
        for one in db.read_now(all_organisations):
            found = db.read_now(lambda conn, org=one.org: reserve(conn, org))  # type: ignore[misc]
            holds = "not on the chain yet" if found is None else f"{format_usdc(found.balance)} USDC"
            click.echo(f"{one.org_id}  {iso_ms(one.created_at)}  {one.org}  {one.reserve}  {holds}")
