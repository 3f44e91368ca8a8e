"""The parts that all models share: naming, strictness, and field types with their limits."""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.chain.rules import CATEGORIES
from app.core.money import format_usdc, parse_usdc
from app.core.pages import RecordPage
from app.core.text import CONTROL, EMOJI_FORM, HIDDEN, composed, has_control, has_hidden
from app.core.timestamps import iso, iso_ms, parse_iso_ms

T = TypeVar("T")
R = TypeVar("R")

_DECIMAL = {"type": "string", "pattern": r"^[0-9]{1,14}(\.[0-9]{1,6})?$", "examples": ["12.50"]}
_DECIMAL_OR_ALL = {"anyOf": [_DECIMAL, {"const": "all"}], "examples": ["all"]}
_TIMESTAMP = {"type": "string", "format": "date-time", "examples": ["2026-05-01T00:00:00Z"]}


class _Request(BaseModel):
    """Input from a client. Only known names are accepted, each in camelCase or in snake_case."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        frozen=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _spells_names_once(cls, sent: Any) -> Any:
        if isinstance(sent, dict):
            for name, field in cls.model_fields.items():
                if field.alias != name and field.alias in sent and name in sent:
                    spellings = {"alias": field.alias, "name": name}
                    raise PydanticCustomError(
                        "two_spellings", "{alias} and {name} are the same; send only one of them", spellings
                    )
        return sent


class Body(_Request):
    """A request body in strict mode: a value with another JSON type than its field's is refused."""

    model_config = ConfigDict(strict=True)


class Query(_Request):
    """Query parameters. Text is converted to the declared types."""


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Names the record's attribute for a field of a response, if the two names differ."""

    path: str


class ResponseBody(BaseModel):
    """A response body in snake_case. It is validated from the record that it shows."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, record: object, **values: Any) -> Self:
        """Return the response that shows a record. The given values take precedence over the record's."""
        return cls(**_values(cls, record, **values))

    @model_validator(mode="before")
    @classmethod
    def _reads_records(cls, shown: Any) -> Any:
        return shown if isinstance(shown, dict | BaseModel) else _values(cls, shown)


def _values(model: type[BaseModel], record: object, **values: Any) -> dict[str, Any]:
    names, read = _reader(model, *values)
    return dict(zip(names, read(record), strict=True)) | values


@cache
def _reader(model: type[BaseModel], *given: str) -> tuple[Sequence[str], Callable[[object], Sequence[Any]]]:
    """Return the names of a model's fields that are not ``given``, and a function that reads those of a record.

    At least two fields must remain. The function is as fast as handwritten attribute access.
    """
    fields = {name: field.metadata for name, field in model.model_fields.items() if name not in given}
    paths = [next((one.path for one in fields[name] if isinstance(one, ReadFrom)), name) for name in fields]
    return tuple(fields), attrgetter(*paths)


def _money(value: Any) -> int:
    if not isinstance(value, str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        raise PydanticCustomError("invalid_amount", f"must be a decimal string{', not a number' if number else ''}")
    try:
        return parse_usdc(value, allow_zero=True)
    except ValueError as error:
        raise PydanticCustomError("invalid_amount", "{reason}", {"reason": str(error)}) from None


def _check(holds: Callable[[Any], object], message: str, code: str = "value") -> Callable[[Any], Any]:
    """Return a validator that accepts a value only if ``holds`` is true for it."""

    def validate(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError(code, message)
        return value

    return validate


_positive = _check(bool, "must be greater than zero", "invalid_amount")
_not_blank = _check(str.strip, "must not be blank")
_trimmed = _check(lambda text: text == text.strip(), "must not begin or end with a space")
_plain = _check(lambda text: not has_control(text), "must not contain control characters")
_visible = _check(
    lambda text: not has_hidden(text),
    "must not contain control, zero-width, invisible or direction-changing characters",
)
_whole = _check(lambda sent: not isinstance(sent, str) or re.fullmatch("-?[0-9]+", sent), "must be a whole number")
_without_comma = _check(lambda tag: "," not in tag, "must not contain a comma, which separates tags")
_category = _check(CATEGORIES.__contains__, f"must be one of {', '.join(CATEGORIES)}")


@dataclass(frozen=True, slots=True)
class _Plain:
    """Text without control characters."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_plain, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^[^{CONTROL}]*$"}


def _key(value: str) -> str:
    if not (value.isascii() and value.isprintable() and 0 < len(value.strip()) == len(value) <= 255):
        words = "must have 1 to 255 printable ASCII characters, without a space at either end"
        raise PydanticCustomError("idempotency_key", words)
    return value


def _recipient(value: Any, validate: ValidatorFunctionWrapHandler) -> str:
    try:
        return str(validate(value))
    except ValidationError:
        raise PydanticCustomError(
            "invalid_recipient", "must be a string of 1 to 253 characters, without control characters"
        ) from None


def _moment(value: Any) -> int:
    try:
        return parse_iso_ms(value if isinstance(value, str) else "")
    except ValueError as error:
        raise PydanticCustomError("timestamp", "{reason}", {"reason": str(error)}) from None


def _timestamp(value: Any) -> int:
    return _moment(value) // 1000


def _after_start(value: int, info: ValidationInfo) -> int:
    start = info.data.get("from_")
    if start is not None and value <= start:
        raise PydanticCustomError("period", "must be after from")
    return value


def _tag_list(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else []


def _all_or_money(value: Any) -> int | None:
    return None if value == "all" else _positive(_money(value))


#: Micro-USDC from a decimal string, zero allowed. Used for the limits of policies and budgets.
Limit = Annotated[int, BeforeValidator(_money), WithJsonSchema(_DECIMAL)]
#: Micro-USDC from a decimal string, above zero.
Amount = Annotated[int, AfterValidator(_positive), BeforeValidator(_money), WithJsonSchema(_DECIMAL)]
#: Micro-USDC from a decimal string above zero, or None for the literal ``all``.
AmountOrAll = Annotated[int | None, BeforeValidator(_all_or_money), WithJsonSchema(_DECIMAL_OR_ALL)]
#: Unix seconds from an ISO 8601 timestamp.
Timestamp = Annotated[int, BeforeValidator(_timestamp), WithJsonSchema(_TIMESTAMP)]
#: Unix milliseconds from an ISO 8601 timestamp.
Moment = Annotated[int, BeforeValidator(_moment), WithJsonSchema(_TIMESTAMP)]
#: The end of a period. The preceding field `from_` is its start.
End = Annotated[Moment, AfterValidator(_after_start)]


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 128, "pattern": pattern}


Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128), _Plain()]
_NAME = StringConstraints(min_length=1, max_length=128)
#: A visible character; every name needs at least one.
_SEEN = rf"[^\s{EMOJI_FORM}{HIDDEN}]"
#: A name chosen by a person or a client: visible characters only, in NFC.
Name = Annotated[
    str,
    _NAME,
    AfterValidator(_visible),
    AfterValidator(composed),
    AfterValidator(_not_blank),
    WithJsonSchema(_text(rf"^[^{HIDDEN}]*{_SEEN}[^{HIDDEN}]*$")),
]
#: A name that a client cannot change later. A space at either end is refused, because it would be an invisible mistake.
NewIdentifier = Annotated[
    str,
    _NAME,
    AfterValidator(_visible),
    AfterValidator(composed),
    AfterValidator(_trimmed),
    AfterValidator(_not_blank),
    WithJsonSchema(_text(rf"^{_SEEN}([^{HIDDEN}]*{_SEEN})?$")),
]
_IN_TAG = f"[^,{HIDDEN}]*"
_TAG_TEXT = rf"{_IN_TAG}[^\s,{EMOJI_FORM}{HIDDEN}]{_IN_TAG}"
Tag = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64),
    AfterValidator(_visible),
    AfterValidator(_without_comma),
    AfterValidator(composed),
    AfterValidator(_not_blank),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 64, "pattern": f"^{_TAG_TEXT}$"}),
]
Tags = Annotated[list[Tag], Field(max_length=32)]
#: Tags from comma-separated text.
TagList = Annotated[
    list[Tag],
    Field(max_length=32),
    BeforeValidator(_tag_list),
    WithJsonSchema({"type": "string", "pattern": f"^{_TAG_TEXT}(,{_TAG_TEXT}){{0,31}}$", "examples": ["a,b"]}),
]
Memo = Annotated[str, StringConstraints(max_length=512), _Plain()]
#: A longer text, such as a task or the reason for a dispute.
Text = Annotated[str, StringConstraints(min_length=1, max_length=2_000), _Plain()]
#: An address has at most 44 characters, a domain at most 253.
RecipientText = Annotated[str, StringConstraints(min_length=1, max_length=253), _Plain()]
#: The recipient of a payment. Malformed text gives `invalid_recipient`, like text that matches no recipient.
Recipient = Annotated[RecipientText, WrapValidator(_recipient)]
Category = Annotated[str, AfterValidator(_category), WithJsonSchema({"type": "string", "enum": list(CATEGORIES)})]
#: Printable ASCII without a space at either end, so that a key is the same in a header and in a body.
IdempotencyKey = Annotated[
    str,
    AfterValidator(_key),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}),
]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=512)]
WHOLE_NUMBER = BeforeValidator(_whole)  # place it after limits, or the schema lacks them
PageSize = Annotated[int, Field(ge=1, le=100), WHOLE_NUMBER]


def _text_of(show: Callable[[int], str]) -> BeforeValidator:
    """Return the validator of a field that shows a record's integer as text."""
    return BeforeValidator(lambda value: show(value) if isinstance(value, int) else value)


_USDC = {"type": "string", "pattern": r"^[0-9]+\.[0-9]{2,6}$", "examples": ["12.50"]}
#: A decimal string from micro-USDC.
Usdc = Annotated[str, _text_of(format_usdc), WithJsonSchema(_USDC)]
#: An ISO 8601 timestamp from Unix milliseconds.
Time = Annotated[str, _text_of(iso_ms), WithJsonSchema(_TIMESTAMP)]
#: An ISO 8601 timestamp from Unix seconds, the chain's unit.
ChainTime = Annotated[str, _text_of(iso), WithJsonSchema(_TIMESTAMP)]
#: Text from a record, or the empty string if the record has None.
TextOrEmpty = Annotated[str, BeforeValidator(lambda value: value or "")]
#: Base64 from bytes.
Base64 = Annotated[str, BeforeValidator(lambda value: b64encode(value) if isinstance(value, bytes) else value)]
Address = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$"})]


def _id(prefix: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{prefix}_[0-9A-Za-z]+$"})


WalletId = Annotated[str, _id("wal")]
PolicyId = Annotated[str, _id("pol")]
BudgetId = Annotated[str, _id("bud")]
TransactionId = Annotated[str, _id("tx")]
EscrowId = Annotated[str, _id("escrow")]
AllowanceId = Annotated[str, _id("alw")]
ApprovalId = Annotated[str, _id("apr")]
ExportId = Annotated[str, _id("exp")]
WebhookId = Annotated[str, _id("wh")]
DeliveryId = Annotated[str, _id("dlv")]
EventId = Annotated[str, _id("evt")]
KeyId = Annotated[str, _id("key")]


class Page(Query):
    """The paging parameters of list endpoints."""

    limit: PageSize = 20
    cursor: Cursor | None = None


class ListResponse(ResponseBody, Generic[T]):
    """One page of a list."""

    data: list[T]
    has_more: bool
    next_cursor: str | None

    @classmethod
    def showing(cls, found: RecordPage[R], shown: Callable[[R], T]) -> Self:
        """Return the response for a page of records. ``shown`` converts each record."""
        data = [shown(one) for one in found.data]
        return cls(data=data, has_more=found.has_more, next_cursor=found.next_cursor)


def optional(convert: Callable[[R], T], value: R | None) -> T | None:
    """Return the converted value; None stays None."""
    return None if value is None else convert(value)


class EmptyBody(Body):
    """The body of requests that need no input except their path."""

    idempotency_key: IdempotencyKey | None = None
