"""Bodies that tell an absent field from its default."""

from typing import Any, Self

from pydantic import (
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from app.api.fields import Body

_KEY = "idempotency_key"
#: Fields of updates that are no change, or that `null` changes.
_MAY_BE_NULL = (_KEY, "budget_id")


class PartialBody(Body):
    """``model_fields_set`` tells which fields are in the body, so that `null` differs from absence."""

    @model_serializer(mode="wrap")
    def _as_sent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Under one idempotency key, bodies are equal if they set the same fields, not if their defaults agree.
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}


def _at_least_one_change(schema: dict[str, Any]) -> None:
    """Require at least one change in a body's schema, and forbid `null`, except for leaving a budget."""
    for name, field in schema["properties"].items():
        if name not in map(to_camel, _MAY_BE_NULL):
            kept, _null = field.pop("anyOf")
            field.update(kept)
    schema["if"] = {"required": ["idempotencyKey"]}
    schema["then"] = {"minProperties": 2}
    schema["else"] = {"minProperties": 1}


class UpdateBody(Body):
    """A body that changes at least one field; absent fields keep their values."""

    model_config = ConfigDict(json_schema_extra=_at_least_one_change)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set - {_KEY}:
            names = ", ".join(to_camel(name) for name in type(self).model_fields if name != _KEY)
            raise PydanticCustomError("empty_update", "give at least one of {names}", {"names": names})
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _not_null(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.field_name not in _MAY_BE_NULL:
            raise PydanticCustomError("null_update", "must not be null; leave the field out to keep its value")
        return value
