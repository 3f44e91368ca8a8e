"""Crashes between the effect of a request and its response."""

from sqlalchemy import update

from app.store.idempotency import table as idempotency
from tests.support.service_world import ServiceWorld


async def lose_answer(world: ServiceWorld, key: str) -> None:
    """Put the database into the state left by a process that died before it stored the answer to a request."""
    lost = update(idempotency).where(idempotency.c.key == key)
    values = {"state": "running", "response": None, "status_code": None}
    await world.service.db.write(lambda conn: conn.execute(lost.values(values)) and None)
