"""`agent-vault holes`: lists holes and gaps of the index."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

import click

from app.commands.command_options import data_folder, open_database, settings_of
from app.core.timestamps import iso
from app.server.databases import open_events

_ALL = sys.maxsize


@click.command()
@data_folder
def holes(data_dir: Path | None) -> None:
    """List holes and gaps of the index.

    Holes are pruned history and unreadable transactions. Gaps are missing events of organisations and vaults. The
    service keeps trying to fill holes and gaps, and also processes later transactions.
    """
    with open_database(data_dir) as (db, _ring), closing(open_events(settings_of(data_dir=data_dir), db)) as events:
        history, transactions, gaps = asyncio.run(
            events.read(lambda store: (store.holes(), store.transaction_holes.newest(_ALL), store.streams_with_gaps()))
        )
    lines = [f"history  after slot {one.after_slot} ({one.after}), before slot {one.before_slot}" for one in history]
    lines += [f"transaction  {one.signature}  slot {one.slot}  {iso(one.since)}  {one.reason}" for one in transactions]
    lines += [f"events  missing for {address}" for address in gaps]
    click.echo("\n".join(lines) or "The index is complete.")
