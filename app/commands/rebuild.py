"""`agent-vault rebuild`: rebuilds the read models from the stored events."""

import asyncio
from contextlib import ExitStack, closing
from pathlib import Path

import click

from app.commands._sidecar import alone_on
from app.commands.command_options import data_folder, settings_of
from app.database.leases import count_live_nodes
from app.projection.projector import Projector
from app.server.bootstrap import open_state
from app.server.databases import may_have_data, open_events
from indexer import StoredEvent


@click.command()
@data_folder
def rebuild(data_dir: Path | None) -> None:
    """Rebuild the read models from the chain's stored events. Stop the service first."""
    settings = settings_of(data_dir=data_dir)
    paths = settings.paths()
    if not may_have_data(settings):
        raise click.ClickException(f"there is no service data in {paths.root}")
    # Any process on this data would read incomplete read models during the rebuild.
    with ExitStack() as stack:
        stack.enter_context(alone_on(paths))
        db = stack.enter_context(closing(open_state(settings)[0]))
        if db.node and (nodes := db.read_now(count_live_nodes)):
            raise click.ClickException(f"{nodes} nodes serve from the {db.name}; stop them first")
        events = stack.enter_context(closing(open_events(settings, db)))

        async def changes(after: int, limit: int) -> list[StoredEvent]:
            return await events.read(lambda store: store.changes(after, limit))

        asyncio.run(Projector(db, changes).rebuild())
    click.echo("Rebuilt.")
