"""Runs only the indexer: `python -m indexer --rpc-url URL --db FILE`."""

import asyncio
import logging
import signal
from pathlib import Path

import click
from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.transport import HttpTransport
from idl.codec import load
from indexer.follower import Indexer

_TIMEOUT = 30.0


@click.command()
@click.option("--rpc-url", required=True, help="URL of a Solana node, such as http://127.0.0.1:8899.")
@click.option("--ws-url", help="URL of the node's WebSocket, to store new events without waiting for the next poll.")
@click.option("--program", help="Address of the program.  [default: the one in the IDL]")
@click.option("--db", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Database file to write.")
@click.option("--org", "orgs", multiple=True, help="Store only this organisation's events. May be repeated.")
@click.option("--poll-interval", default=1.0, show_default=True, help="Seconds between two polls of the history.")
@click.option("--once", is_flag=True, help="Store all past events and deposits, then exit.")
def main(  # noqa: PLR0917 - one parameter per option
    rpc_url: str,
    ws_url: str | None,
    program: str | None,
    db: Path,
    orgs: tuple[str, ...],
    poll_interval: float,
    once: bool,
) -> None:
    """Store the program's events in a database: first all past events, then new ones."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    async def run() -> None:
        transport = HttpTransport(rpc_url, timeout=_TIMEOUT)
        indexer = Indexer(
            transport=transport,
            codec=load(Pubkey.from_string(program) if program else None),
            db_path=db,
            poll_interval=poll_interval,
            ws_urls=[] if ws_url is None else [ws_url],
            orgs=orgs or None,
        )
        try:
            if once:
                try:
                    added = await indexer.catch_up()
                except (ChainUnavailable, RpcError) as error:
                    raise click.ClickException(str(error)) from None
                click.echo(f"{added} rows stored, {indexer.store.count_rows()} in all")
                return
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await indexer.start()
            await stop.wait()
        finally:
            await indexer.stop()
            await transport.aclose()

    asyncio.run(run())


if __name__ == "__main__":
    main()
