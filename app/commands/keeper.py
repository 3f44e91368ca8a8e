"""`agent-vault keeper`: runs the keeper in a process next to a service."""

import asyncio
from contextlib import suppress
from typing import Any

import click

from app.commands._loop import run as run_long
from app.commands._sidecar import running_sidecar
from app.commands.command_options import data_folder, rpc_url, settings_of, usdc_mint
from app.server.data_folder import node_name, sidecar_settings


@click.command()
@data_folder
@rpc_url
@usdc_mint
def keeper(**given: Any) -> None:
    """Run the keeper without the API, on the service's data.

    The keeper freezes wallets with an expired policy, refunds escrows, settles allowances, and tops up wallets. If the
    service uses no PostgreSQL database, the process also runs other background jobs, such as the indexer.
    """
    settings = sidecar_settings(settings_of(**given, keeper=True))

    async def run() -> None:
        async with running_sidecar(settings):
            click.echo(f"Keeper at work on {node_name(settings)}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        run_long(run())
