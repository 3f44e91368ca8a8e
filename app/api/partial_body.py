"""Bodies that distinguish an absent field from a field with its default value."""

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

from app.api.fields import ChangeBody, without_defaults

_KEY = "idempotency_key"
#: Fields of updates that may be `null`: the idempotency key, which is not a change, and fields that `null` clears.
_MAY_BE_NULL = (_KEY, "budget_id")


class PartialBody(ChangeBody):
    """A body in which `null` differs from absence: ``model_fields_set`` lists the fields that were sent."""

    # The schema shows no defaults: an absent field of an update or a copy keeps its value.
    model_config = ConfigDict(json_schema_extra=without_defaults)

    @model_serializer(mode="wrap")
    def _as_sent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Bodies under one idempotency key are equal only if they set the same fields. Defaults do not count as set.
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}


def _at_least_one_change(schema: dict[str, Any]) -> None:
    """Require at least one change in a body's schema. Forbid `null`, except for the fields that may be null."""
    for name, field in schema["properties"].items():
        if name not in map(to_camel, _MAY_BE_NULL):
            kept, _null = field.pop("anyOf")
            field.update(kept)
    schema["if"] = {"required": ["idempotencyKey"]}
    schema["then"] = {"minProperties": 2}
    schema["else"] = {"minProperties": 1}


class UpdateBody(ChangeBody):
    """A body that changes at least one field. Absent fields keep their values."""

    model_config = ConfigDict(json_schema_extra=_at_least_one_change)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set - {_KEY}:
            names = ", ".join(to_camel(name) for name in type(self).model_fields if name != _KEY)
            raise PydanticCustomError("empty_update", "must contain at least one of {names}", {"names": names})
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _not_null(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.field_name not in _MAY_BE_NULL:
            raise PydanticCustomError("null_update", "must not be null; omit the field to keep its value")
        return value
