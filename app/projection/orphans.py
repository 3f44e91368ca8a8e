"""Events that arrive before the one that created what they are about."""

from sqlalchemy import delete

from app.projection.batch import Batch
from app.store.read_tables import projection

_PREFIX = "orphan:"


def note(batch: Batch, address: str) -> None:
    """Remember that an event about `address` found nothing to change."""
    batch.put(projection, {"name": _PREFIX + address, "position": 0}, keys=["name"])


def adopt(batch: Batch, address: str) -> bool:
    """Forget it, now that `address` exists; true when there was such an event, which then has to be applied again."""
    orphan = delete(projection).where(projection.c.name == _PREFIX + address)
    return batch.connection.execute(orphan).rowcount > 0
