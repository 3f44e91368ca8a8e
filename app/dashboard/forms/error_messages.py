"""Error messages for people. They replace API messages about headers and requests, which mean nothing on a page."""

from collections.abc import Mapping

from pydantic.alias_generators import to_camel

from app.api.forms import Fields, InvalidFormError
from app.core.errors import CATALOGUE, ApiError, ConflictError

_KEPT = "Your input is kept. Check the other change, and save again."
FOR_PEOPLE: Mapping[str, str] = {
    "authentication_failed": "This credential is unknown, revoked or no longer valid. Sign in again.",
    "budget_in_use": "Vaults are still in the budget, or budgets are part of it. Take the vaults out and delete those "
    "budgets first.",
    "host_not_allowed": "The page was requested at an address that is not the service's own, or by another site. "
    "Open the dashboard at the service's own address.",
    "idempotency_conflict": "This form was sent before with other values, and its action may have taken effect. "
    "Check if it did, then open the page again for a new form.",
    "idempotency_in_progress": "The same action is in progress, or its outcome is not known yet. Check in a moment.",
    "insufficient_permissions": "Your role does not allow this.",
    "rate_limited": "You sent too many requests in a short time. Wait a moment, then try again.",
    "restore_catching_up": "The service was restored from a backup, or its database has failed over, and it is still "
    "reading the later transactions from the chain. Until it has finished, it accepts no new payments, escrows, "
    "allowances, fundings or withdrawals. Try again in a minute.",
    "version_conflict": f"Another change was saved while you were editing. {_KEPT}",
}
"""Messages that pages show in place of the general message of an error."""
_OF_A_KEY = "The API key made too many requests."


def said(error: ApiError) -> str:
    """Return an error's message. The general message of a code is replaced by the message for people, if one exists."""
    general = error.message in {CATALOGUE[error.code].meaning, _OF_A_KEY}
    return FOR_PEOPLE.get(error.code, error.message) if general else error.message


def messages_of(error: ApiError, form: Fields) -> Mapping[str, str]:
    """Return an error's messages by field of the form.

    The key `""` has the messages that belong to no field of the form.
    """
    fields = {spelling: name for name, _ in form for spelling in (name, to_camel(name))}
    if isinstance(error, InvalidFormError):
        found = {fields[name]: text for name, text in error.messages.items() if name in fields}
        others = {name: text for name, text in error.messages.items() if name not in fields}
        return {**found, "": in_one(others)} if others else found
    message = said(error)
    place, colon, rest = message.partition(": ")
    name, _, entry = place.partition(".")
    if not colon or name not in fields:
        return {"": message}
    return {fields[name]: f"Entry {int(entry) + 1}: {rest}" if entry.isdecimal() else rest}


def in_one(messages: Mapping[str, str]) -> str:
    """Return the messages about several fields as one text."""
    return " ".join(f"{name}: {text}" if name else text for name, text in messages.items())


def concurrent_edit(what: str) -> ConflictError:
    """Return the error for a form that showed an outdated version."""
    return ConflictError("version_conflict", f"Another change of the {what} was saved while you edited it. {_KEPT}")
