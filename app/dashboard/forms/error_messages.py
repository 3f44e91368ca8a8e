"""Messages of errors for people: some of the API's own speak of headers and requests, which a page does not have."""

from collections.abc import Mapping

from pydantic.alias_generators import to_camel

from app.api.forms import Fields, InvalidFormError
from app.core.errors import CATALOGUE, ApiError, ConflictError

_KEPT = "What you typed is kept; look at what was changed, and save again."
FOR_PEOPLE: Mapping[str, str] = {
    "authentication_failed": "That is unknown, was revoked, or is not valid any more. Sign in again.",
    "budget_in_use": "Vaults are still in the budget. Take them out first.",
    "host_not_allowed": "The page was asked for at another address than the service's own, or another site sent it.",
    "idempotency_conflict": "This form was sent before with other values, and what it asked for may have been done. "
    "Look whether it was; then open the page again for a new form.",
    "idempotency_in_progress": "The same is being done already, or its outcome is not known yet. Look in a moment.",
    "insufficient_permissions": "Your role does not allow this.",
    "rate_limited": "You asked for too much in a short time. Wait a moment, then try again.",
    "restore_catching_up": "The service was restored from a backup, or its database has failed over, and it is still "
    "reading the later transactions from the chain. No money moves until it has. Try again in a minute.",
    "version_conflict": f"Somebody changed it while you edited it. {_KEPT}",
}
"""What pages say instead of the general message of an error."""
_OF_A_KEY = "The API key made too many requests."


def said(error: ApiError) -> str:
    """Return an error's message; for people, where it is the general one of its code."""
    general = error.message in {CATALOGUE[error.code].meaning, _OF_A_KEY}
    return FOR_PEOPLE.get(error.code, error.message) if general else error.message


def messages_of(error: ApiError, form: Fields) -> Mapping[str, str]:
    """Return an error's messages under the fields that they are about; `""` has those about fields not in the form."""
    fields = {spelling: name for name, _ in form for spelling in (name, to_camel(name))}
    if isinstance(error, InvalidFormError):
        found = {fields[name]: text for name, text in error.messages.items() if name in fields}
        others = [f"{name}: {text}" if name else text for name, text in error.messages.items() if name not in fields]
        return {**found, "": " ".join(others)} if others else found
    message = said(error)
    place, colon, rest = message.partition(": ")
    name, _, entry = place.partition(".")
    if not colon or name not in fields:
        return {"": message}
    return {fields[name]: f"Entry {int(entry) + 1}: {rest}" if entry.isdecimal() else rest}


def concurrent_edit(what: str, version: int) -> ConflictError:
    """Return the error for a form that showed another version than the current one."""
    return ConflictError(
        "version_conflict", f"Somebody changed the {what} while you edited it: it is version {version} now. {_KEPT}"
    )
