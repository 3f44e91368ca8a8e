"""Forms of dashboard pages. They use the fields and the validation errors of the API's request bodies."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from app.api._parsing import field_messages, read_form, validation_error
from app.api.fields import Body, Query
from app.core.errors import RequestError

Arguments = TypeVar("Arguments", bound=Body | Query)
Fields = list[tuple[str, str]]

__all__ = ["Fields", "InvalidFormError", "read_form", "validated"]


class InvalidFormError(RequestError):
    """The form's input is invalid. ``messages`` has the first message about each field, by the name in the API."""

    def __init__(self, error: ValidationError) -> None:
        first = validation_error(error, "form")
        super().__init__(first.code, first.message)
        self.messages = field_messages(error)


def validated(model: type[Arguments], values: Mapping[str, Any]) -> Arguments:
    """Return the API's body or query for these values. Fields left empty in the form are omitted.

    Raises InvalidFormError.
    """
    given = {name: value for name, value in values.items() if value not in ("", None)}
    try:
        return cast(Arguments, model.model_validate(given))
    except ValidationError as error:
        raise InvalidFormError(error) from None
