"""What all models share: spellings, strictness and the field types with their limits."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from app.money import parse_usdc
from app.timestamps import parse_iso_ms

_DECIMAL = {"type": "string", "pattern": r"^[0-9]{1,14}(\.[0-9]{1,6})?$", "examples": ["12.50"]}
_DECIMAL_OR_ALL = {"anyOf": [_DECIMAL, {"const": "all"}], "examples": ["all"]}
_TIMESTAMP = {"type": "string", "format": "date-time", "examples": ["2026-05-01T00:00:00Z"]}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Body(BaseModel):
    """A request body: both spellings of every name, nothing else, no silent conversions."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        frozen=True,
    )


class Query(BaseModel):
    """Query parameters; text is converted to the declared types."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        frozen=True,
    )


class Answer(BaseModel):
    """A response body, in snake_case."""

    model_config = ConfigDict(frozen=True)


def _money(value: Any) -> int:
    if not isinstance(value, str):
        raise PydanticCustomError("invalid_amount", "must be a decimal string, not a number")
    try:
        return parse_usdc(value, allow_zero=True)
    except ValueError as error:
        raise PydanticCustomError("invalid_amount", "{reason}", {"reason": str(error)}) from None


def _positive(value: int) -> int:
    if value == 0:
        raise PydanticCustomError("invalid_amount", "must be greater than zero")
    return value


def _plain(value: str) -> str:
    if _CONTROL.search(value):
        raise PydanticCustomError("string_control", "must not contain control characters")
    return value


def _moment(value: Any) -> int:
    try:
        return parse_iso_ms(value if isinstance(value, str) else "")
    except ValueError:
        raise PydanticCustomError("timestamp", "must be an ISO 8601 timestamp such as 2026-05-01T00:00:00Z") from None


def _timestamp(value: Any) -> int:
    return _moment(value) // 1000


def _tag(value: str) -> str:
    if "," in value:
        raise PydanticCustomError("tag", "must not contain a comma, which separates tags")
    return value


def _tag_list(value: Any) -> list[str]:
    return [tag for tag in value.split(",") if tag] if isinstance(value, str) else []


def _all_or_money(value: Any) -> int | None:
    return None if value == "all" else _positive(_money(value))


#: Micro-USDC from a decimal string; zero allowed (limits of policies).
Limit = Annotated[int, BeforeValidator(_money), WithJsonSchema(_DECIMAL)]
#: Micro-USDC from a decimal string, above zero.
Amount = Annotated[int, AfterValidator(_positive), BeforeValidator(_money), WithJsonSchema(_DECIMAL)]
#: The same, or None for the literal ``all``.
AmountOrAll = Annotated[int | None, BeforeValidator(_all_or_money), WithJsonSchema(_DECIMAL_OR_ALL)]
#: Unix seconds from an ISO 8601 timestamp.
Timestamp = Annotated[int, BeforeValidator(_timestamp), WithJsonSchema(_TIMESTAMP)]
#: The same in Unix milliseconds.
Moment = Annotated[int, BeforeValidator(_moment), WithJsonSchema(_TIMESTAMP)]

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_plain)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_plain)]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_plain), AfterValidator(_tag)]
Tags = Annotated[list[Tag], Field(max_length=32)]
#: Tags from a comma-separated text.
TagList = Annotated[
    list[Tag], Field(max_length=32), BeforeValidator(_tag_list), WithJsonSchema({"type": "string", "examples": ["a,b"]})
]
Memo = Annotated[str, StringConstraints(max_length=512), AfterValidator(_plain)]
#: What is explained: a task, a dispute's reason.
Text = Annotated[str, StringConstraints(min_length=1, max_length=2_000), AfterValidator(_plain)]
#: An address is at most 44 characters, a domain at most 253.
Recipient = Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(_plain)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255), AfterValidator(_plain)]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=512)]
PageSize = Annotated[int, Field(ge=1, le=100)]


class Page(Query):
    """Paging of the list endpoints."""

    limit: PageSize = 20
    cursor: Cursor | None = None


class ErrorBody(Answer):
    """The members of every error; some codes add more."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str
    docs: str
    request_id: str


class ErrorEnvelope(Answer):
    """What every error answers."""

    error: ErrorBody
