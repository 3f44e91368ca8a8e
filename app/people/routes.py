"""Operations on people, for admins: list and remove. The dashboard and the command line make invitations."""

from app.access.auth import ADMINS
from app.api.ending import EndCredential
from app.api.operation import Call, operation
from app.people import service as people
from app.people.models import PersonList, RemovedPerson


@operation("GET /v1/people", roles=ADMINS)
async def list_people(call: Call) -> PersonList:
    """List the people who may sign in to the dashboard, oldest first."""
    return await people.listed(call.service, call.principal)


@operation("DELETE /v1/people/{person_id}", roles=ADMINS, errors=("not_found", "last_admin_key"))
async def remove_person(call: Call, body: EndCredential) -> RemovedPerson:
    """Remove a person.

    Ends the person's sessions, passkeys, download links and open invitations. The last admin among the people cannot
    be removed. The response lists the keys and people that the person created, directly or through others; with
    `endDescendants` = `true` these end, too. The caller and its own descendants are never ended.
    """
    return await people.end(call.service, call.principal, call.claim, call.path("person_id"), body)
