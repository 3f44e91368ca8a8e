"""What all models share: spellings, strictness and the field types with their limits."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

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
from app.core.money import parse_usdc
from app.core.timestamps import parse_iso_ms
from app.store.paging import RecordPage

T = TypeVar("T")
R = TypeVar("R")

_DECIMAL = {"type": "string", "pattern": r"^[0-9]{1,14}(\.[0-9]{1,6})?$", "examples": ["12.50"]}
_DECIMAL_OR_ALL = {"anyOf": [_DECIMAL, {"const": "all"}], "examples": ["all"]}
_TIMESTAMP = {"type": "string", "format": "date-time", "examples": ["2026-05-01T00:00:00Z"]}
#: Control characters but for tab, line feed and carriage return, as a range of regular expressions in both dialects.
_CONTROL = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f"
_HAS_CONTROL = re.compile(f"[{_CONTROL}]")


class _Request(BaseModel):
    """What a client sends: each name in one of its two spellings, and nothing else."""

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
                        "two_spellings", "{alias} and {name} are the same; give one of them", spellings
                    )
        return sent


class Body(_Request):
    """A request body, without silent conversions."""

    model_config = ConfigDict(strict=True)


class Query(_Request):
    """Query parameters; text is converted to the declared types."""


class Answer(BaseModel):
    """A response body, in snake_case."""

    model_config = ConfigDict(frozen=True)


def _money(value: Any) -> int:
    if not isinstance(value, str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        raise PydanticCustomError("invalid_amount", f"must be a decimal string{', not a number' if number else ''}")
    try:
        return parse_usdc(value, allow_zero=True)
    except ValueError as error:
        raise PydanticCustomError("invalid_amount", "{reason}", {"reason": str(error)}) from None


def _positive(value: int) -> int:
    if value == 0:
        raise PydanticCustomError("invalid_amount", "must be greater than zero")
    return value


def _plain(value: str) -> str:
    if _HAS_CONTROL.search(value):
        raise PydanticCustomError("string_control", "must not contain control characters")
    return value


@dataclass(frozen=True, slots=True)
class _Plain:
    """Text without control characters, and for the document without those in ``but``."""

    but: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_plain, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^[^{self.but}{_CONTROL}]*$"}


def _not_blank(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("string_blank", "must not be blank")
    return value


def _trimmed(value: str) -> str:
    if value != value.strip():
        raise PydanticCustomError("string_blank", "must not begin or end with a blank")
    return value


def _recipient(value: Any, validate: ValidatorFunctionWrapHandler) -> str:
    try:
        return str(validate(value))
    except ValidationError:
        raise PydanticCustomError(
            "invalid_recipient", "must be a string of 1 to 253 characters, without control characters"
        ) from None


def _category(value: str) -> str:
    if value not in CATEGORIES:
        raise PydanticCustomError("category", "must be one of {names}", {"names": ", ".join(CATEGORIES)})
    return value


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


def _tag(value: str) -> str:
    if "," in value:
        raise PydanticCustomError("tag", "must not contain a comma, which separates tags")
    return value


def _tag_list(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else []


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
#: The end of a period whose beginning is the field `from_` before it.
End = Annotated[Moment, AfterValidator(_after_start)]


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 128, "pattern": pattern}


Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128), _Plain()]
#: An identifier that its client chooses for good: a blank at its ends would be a slip that nobody sees.
NewIdentifier = Annotated[
    Identifier,
    AfterValidator(_trimmed),
    WithJsonSchema(_text(rf"^[^\s{_CONTROL}]([^{_CONTROL}]*[^\s{_CONTROL}])?$")),
]
Name = Annotated[
    Identifier,
    AfterValidator(_not_blank),
    WithJsonSchema(_text(rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$")),
]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=64), _Plain(but=","), AfterValidator(_tag)]
Tags = Annotated[list[Tag], Field(max_length=32)]
_TAG_TEXT = f"[^,{_CONTROL}]{{1,64}}"
#: Tags from a comma-separated text.
TagList = Annotated[
    list[Tag],
    Field(max_length=32),
    BeforeValidator(_tag_list),
    WithJsonSchema({"type": "string", "pattern": f"^{_TAG_TEXT}(,{_TAG_TEXT}){{0,31}}$", "examples": ["a,b"]}),
]
Memo = Annotated[str, StringConstraints(max_length=512), _Plain()]
#: What is explained: a task, a dispute's reason.
Text = Annotated[str, StringConstraints(min_length=1, max_length=2_000), _Plain()]
#: An address is at most 44 characters, a domain at most 253.
RecipientText = Annotated[str, StringConstraints(min_length=1, max_length=253), _Plain()]
#: The same where it is to be paid: what is no such text is an `invalid_recipient` like a text that names nobody.
Recipient = Annotated[RecipientText, WrapValidator(_recipient)]
Category = Annotated[str, AfterValidator(_category), WithJsonSchema({"type": "string", "enum": list(CATEGORIES)})]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255), _Plain()]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=512)]
PageSize = Annotated[int, Field(ge=1, le=100)]


#: What answers hold is made by us and not validated again; these say in the document what it looks like.
Usdc = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^[0-9]+\.[0-9]{2,6}$", "examples": ["12.50"]})]
Time = Annotated[str, WithJsonSchema(_TIMESTAMP)]


def _id(prefix: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{prefix}_[0-9A-Za-z]+$"})


WalletId = Annotated[str, _id("wal")]
PolicyId = Annotated[str, _id("pol")]
TransactionId = Annotated[str, _id("tx")]
EscrowId = Annotated[str, _id("escrow")]
ApprovalId = Annotated[str, _id("apr")]
ExportId = Annotated[str, _id("exp")]
WebhookId = Annotated[str, _id("wh")]
DeliveryId = Annotated[str, _id("dlv")]
EventId = Annotated[str, _id("evt")]
KeyId = Annotated[str, _id("key")]


def without_defaults(schema: dict[str, Any]) -> None:
    """Take the defaults out of a schema: a generated client would send them as if its user had."""
    for field in schema["properties"].values():
        field.pop("default", None)


def at_least_one_change(schema: dict[str, Any]) -> None:
    """Say in a body's schema that it changes something, and that `null` is no value: absence keeps what is there."""
    without_defaults(schema)
    for name, field in schema["properties"].items():
        if name != "idempotencyKey":
            kept, _null = field.pop("anyOf")
            field.update(kept)
    schema["if"] = {"required": ["idempotencyKey"]}
    schema["then"] = {"minProperties": 2}
    schema["else"] = {"minProperties": 1}


class Page(Query):
    """Paging of the list endpoints."""

    limit: PageSize = 20
    cursor: Cursor | None = None


class ListAnswer(Answer, Generic[T]):
    """One page of a list."""

    data: list[T]
    has_more: bool
    next_cursor: str | None

    @classmethod
    def of(cls, found: RecordPage[R], shown: Callable[[R], T]) -> Self:
        """Return the answer that shows a page of records."""
        data = [shown(one) for one in found.data]
        return cls(data=data, has_more=found.has_more, next_cursor=found.next_cursor)


def optional(convert: Callable[[R], T], value: R | None) -> T | None:
    """Return the converted value; None stays None."""
    return None if value is None else convert(value)


class ErrorBody(Answer):
    """The members of every error; some codes add more."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["wallet_not_found"])]
    message: str
    docs: Annotated[str, WithJsonSchema({"type": "string", "format": "uri"})]
    request_id: Annotated[str, _id("req")]


class ErrorEnvelope(Answer):
    """What every error answers."""

    error: ErrorBody


class Violation(Answer):
    """The rule that refused, its limit and what the payment would have made of it."""

    rule: str
    limit: str
    attempted: str


class PolicyViolationBody(ErrorBody):
    """The error of a payment or an escrow that the wallet's policy refused.

    `approval_id` is that of the approval with which it would pass, where there is one.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=without_defaults)

    code: Literal["policy_violation"]
    violation: Violation
    wallet_id: WalletId
    policy_id: PolicyId
    approval_id: ApprovalId = ""


class PolicyViolationEnvelope(Answer):
    """What a refusal by the policy answers."""

    error: PolicyViolationBody


class EmptyBody(Body):
    """Body of requests whose path says everything."""

    idempotency_key: IdempotencyKey | None = None
