"""Names of actors as shown on pages."""

from collections.abc import Collection

from app.core.actors import Actor
from app.dashboard.forms.formatting import Words, short
from app.store.keys import key_names
from app.store.people import names_of_people
from app.submission.context import Service


async def names_of(service: Service, org: str, actors: Collection[Actor]) -> dict[Actor, Words]:
    """Return a name for each actor. A signer is named by its address, and the service by the part that acted."""
    people = {one.id for one in actors if one.type == "person"}
    keys = {one.id for one in actors if one.type == "key"}
    person, key = await service.db.read(lambda conn: (names_of_people(conn, org, people), key_names(conn, org, keys)))

    def name(actor: Actor) -> Words:
        if actor.type == "person":
            return person.get(actor.id, actor.id)
        if actor.type == "key":
            return f"API key {key[actor.id]}" if key.get(actor.id) else f"API key {actor.id}"
        return short(actor.id) if actor.type == "chain" else f"The service: {actor.id.replace('_', ' ')}"

    return {one: name(one) for one in actors}
