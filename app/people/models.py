"""Bodies of the requests for signing in and inviting others, and responses about people."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.ending import Descendant
from app.api.fields import Body, ChangeBody, Name, PersonId, ResponseBody, Time, example
from app.api.whole_list import WholeList
from app.core.actors import Actor

PersonRole = Literal["viewer", "operator", "admin"]
#: A credential from the browser, in JSON.
Credential = Annotated[str, Field(min_length=2, max_length=20_000)]
_Code = Annotated[str, Field(max_length=8_000)]
_Secret = Annotated[str, Field(min_length=1, max_length=200)]


class AdminKeySignIn(Body):
    """The admin key for the first sign-in, or for a step-up while the organisation has no person."""

    admin_key: _Secret


class PasskeyResponse(Body):
    """The browser's response signed by a passkey."""

    credential: Credential


class NewPasskey(Body):
    """A person's name, sent before their passkey is created."""

    name: Name


class RegisteredPasskey(NewPasskey, PasskeyResponse):
    """A person's name and their new passkey."""


class JoinRequest(NewPasskey):
    """A person's name and the token of their invitation."""

    token: _Secret


class JoinWithPasskey(JoinRequest, RegisteredPasskey):
    """A join request with the new passkey."""


class CompanyCallback(Body):
    """The parameters with which the company's provider sent the browser back: a code, or an error."""

    state: _Secret
    code: _Code = ""
    error: _Code = ""
    """The provider's error code; empty after a successful sign-in."""
    iss: _Code = ""


class InvitePerson(ChangeBody):
    """The name and role of the person to invite."""

    name: Name
    role: PersonRole


class ListedPerson(ResponseBody):
    """A person who may sign in to the dashboard. `created_by` is the inviter, or null if it is not known."""

    person_id: PersonId
    """The id of the person."""
    name: Annotated[str, example("Ada Lovelace")]
    """The name of the person."""
    role: PersonRole
    """The role: `viewer`, `operator` or `admin`."""
    created_at: Time
    """The time when the person joined."""
    created_by: Actor | None
    """The inviter, as type and id. For a first person without an invitation, the admin key. Null if the person joined
    before this field was introduced.
    """


class PersonList(WholeList[ListedPerson]):
    """All people of the organisation, oldest first."""


class RemovedPerson(ListedPerson):
    """A removed person, and the active API keys and people that this person created, directly or through others."""

    descendants: list[Descendant]
    """The active API keys and people that the person created, directly or through others. With `endDescendants`, this
    request has ended them.
    """


class NewInvitation(ResponseBody):
    """The invited person's name, and the token of their link. Only this response and its replays show the token."""

    name: str
    token: str
