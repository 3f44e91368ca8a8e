"""Messages of errors for people: some of the API's own speak of headers and requests, which a page does not have."""

from collections.abc import Mapping

from app.core.errors import CATALOGUE, ApiError, ConflictError

_KEPT = "What you typed is kept; look at what was changed, and save again."
_FOR_PEOPLE: Mapping[str, str] = {
    "budget_in_use": "Vaults are still in the budget. Take them out first.",
    "version_conflict": f"Somebody changed it while you edited it. {_KEPT}",
}


def said(error: ApiError) -> str:
    """Return an error's message; for people, where it is the general one of its code."""
    general = error.message == CATALOGUE[error.code].meaning
    return _FOR_PEOPLE.get(error.code, error.message) if general else error.message


def changed_meanwhile(what: str, version: int) -> ConflictError:
    """Return the error for a form that showed another version than the current one."""
    return ConflictError(
        "version_conflict", f"Somebody changed the {what} while you edited it: it is version {version} now. {_KEPT}"
    )
