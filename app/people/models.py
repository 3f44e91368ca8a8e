"""What people send to sign in and to invite others."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.fields import Body, IdempotencyKey, Name, ResponseBody

PersonRole = Literal["viewer", "operator", "admin"]
#: A credential as the browser gives it, in JSON.
Credential = Annotated[str, Field(min_length=2, max_length=20_000)]
_Code = Annotated[str, Field(max_length=8_000)]
_Secret = Annotated[str, Field(min_length=1, max_length=200)]


class AdminKeySignIn(Body):
    """The admin key of the first sign-in, or of a step-up while there is no person."""

    admin_key: _Secret


class PasskeyResponse(Body):
    """What a passkey signed."""

    credential: Credential


class NewPasskey(Body):
    """A person's name, before a passkey is made."""

    name: Name


class RegisteredPasskey(NewPasskey, PasskeyResponse):
    """A person's name and their new passkey."""


class JoinRequest(NewPasskey):
    """A person's name and the token of their invitation."""

    token: _Secret


class JoinWithPasskey(JoinRequest, RegisteredPasskey):
    """The same with their new passkey."""


class CompanyCallback(Body):
    """What the company's sign-in sent back with the browser: a code, or an error."""

    state: _Secret
    code: _Code = ""
    error: _Code = ""
    iss: _Code = ""


class InvitePerson(Body):
    """Whom to invite."""

    name: Name
    role: PersonRole
    idempotency_key: IdempotencyKey | None = None


class NewInvitation(ResponseBody):
    """Who was invited, and the token of the link, which is shown only once."""

    name: str
    token: str
