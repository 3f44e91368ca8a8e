"""Bodies of the requests for signing in and inviting others."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.fields import Body, IdempotencyKey, Name, ResponseBody

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
    iss: _Code = ""


class InvitePerson(Body):
    """The name and role of the person to invite."""

    name: Name
    role: PersonRole
    idempotency_key: IdempotencyKey | None = None


class NewInvitation(ResponseBody):
    """The invited person's name, and the token of their link. Only this response and its replays show the token."""

    name: str
    token: str
