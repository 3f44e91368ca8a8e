"""`agent-vault serve`, `demo` and `localnet`: the service, a tour of it, and the embedded chain alone."""

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import click

from app.commands import demo as _demo
from app.commands._loop import run as run_long
from app.commands.command_options import data_folder, node_option, settings_of, usdc_mint
from app.server.bootstrap import open_localnet, prepare
from app.server.data_folder import with_folder
from app.server.serve import serve as serve_forever
from app.server.serve import serve_chain

_host = click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")


@click.command()
@data_folder
@_host
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.  [default: 8402]")
@click.option(
    "--localnet-port",
    type=click.IntRange(1, 65534),
    help="JSON-RPC port of the embedded chain. The WebSocket uses the next port.  [default: 8899]",
)
@node_option("JSON-RPC address of a cluster to use instead of the embedded chain.")
@usdc_mint
@click.option("--roles", help="Roles of this node, with PostgreSQL.  [default: api,indexer,worker]")
def serve(**given: Any) -> None:
    """Serve the API and the dashboard. The chain is embedded, unless --rpc-url names a cluster."""
    run_long(serve_forever(with_folder(settings_of(**given)), click.echo))


@click.command()
def demo() -> None:
    """Run a tour of the service in one process. It shows a policy, a wallet, funds, payments, refusals and a freeze."""
    asyncio.run(_demo.run(click.echo))


@click.command()
@data_folder
@_host
@click.option("--port", "localnet_port", type=click.IntRange(1, 65534), help="JSON-RPC port.  [default: 8899]")
def localnet(**given: Any) -> None:
    """Run only the embedded chain."""
    # The chain keeps its state in its own file, so it can start while the service's database is down or not upgraded.
    settings = with_folder(settings_of(**given).model_copy(update={"rpc_url": None, "database_url": None}))

    async def run() -> None:
        prepare(settings)
        async with open_localnet(settings) as chain, AsyncExitStack() as stack:
            await serve_chain(stack, chain, settings, settings.host, "--port")
            port = settings.localnet_port
            click.echo(f"Embedded chain on http://{settings.host}:{port} and ws://{settings.host}:{port + 1}")
            click.echo(f"USDC mint: {chain.usdc_mint}")
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        run_long(run())
