"""The parts that all models share: naming, strictness, and field types with their limits."""

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
    StringConstraints,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from app.api._checks import (
    Plain,
    after_start,
    all_or_money,
    category,
    idempotency_key,
    moment,
    money,
    not_blank,
    positive,
    recipient,
    tag_list,
    timestamp,
    trimmed,
    visible,
    whole,
    without_comma,
)
from app.api.field_docstrings import DocumentedModel
from app.chain.rules import CATEGORIES
from app.core.money import format_usdc
from app.core.pages import RecordPage
from app.core.text import EMOJI_FORM, HIDDEN, composed
from app.core.timestamps import iso, iso_ms

T = TypeVar("T")
R = TypeVar("R")

_DECIMAL = {"type": "string", "pattern": r"^[0-9]{1,14}(\.[0-9]{1,6})?$", "examples": ["12.50"]}
_DECIMAL_OR_ALL = {"anyOf": [_DECIMAL, {"const": "all"}], "examples": ["all"]}
_ADDRESS = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"
_CURSOR = "eyJhZnRlciI6MTAyNH0"
_TIMESTAMP = {"type": "string", "format": "date-time", "examples": ["2026-05-01T00:00:00Z"]}


class _Request(DocumentedModel):
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
    """A request body in strict mode: a value of the wrong JSON type is refused, not converted."""

    model_config = ConfigDict(strict=True)


class Query(_Request):
    """Query parameters. Text is converted to the declared types."""


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Names the record's attribute that fills a field of a response, if the two names differ."""

    path: str


def without_defaults(schema: dict[str, Any]) -> None:
    """Remove the defaults from a model's schema, because clients do not need them."""
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


class ResponseBody(DocumentedModel):
    """A response body in snake_case. It is validated from the record that it shows."""

    model_config = ConfigDict(frozen=True, json_schema_extra=without_defaults)

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
    """Return the names of a model's fields that are not ``given``, and a function that reads them from a record.

    At least two fields must remain. The function is as fast as handwritten attribute access.
    """
    fields = {name: field.metadata for name, field in model.model_fields.items() if name not in given}
    paths = [next((one.path for one in fields[name] if isinstance(one, ReadFrom)), name) for name in fields]
    return tuple(fields), attrgetter(*paths)


#: Micro-USDC from a decimal string, zero allowed. Used for the limits of policies and budgets.
Limit = Annotated[int, BeforeValidator(money), WithJsonSchema(_DECIMAL)]
#: Micro-USDC from a decimal string, above zero.
Amount = Annotated[int, AfterValidator(positive), BeforeValidator(money), WithJsonSchema(_DECIMAL)]
#: Micro-USDC from a decimal string above zero, or None for the literal ``all``.
AmountOrAll = Annotated[int | None, BeforeValidator(all_or_money), WithJsonSchema(_DECIMAL_OR_ALL)]
#: Unix seconds from an ISO 8601 timestamp.
Timestamp = Annotated[int, BeforeValidator(timestamp), WithJsonSchema(_TIMESTAMP)]
#: Unix milliseconds from an ISO 8601 timestamp.
Moment = Annotated[int, BeforeValidator(moment), WithJsonSchema(_TIMESTAMP)]
#: The end of a period. The preceding field `from_` is its start.
End = Annotated[Moment, AfterValidator(after_start)]


def example(value: Any) -> Any:
    """Return the annotation that gives a field or type its example in the OpenAPI document."""
    return Field(examples=[value])


def _text(pattern: str, shown: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 128, "pattern": pattern, "examples": [shown]}


Identifier = Annotated[str, StringConstraints(min_length=1, max_length=128), Plain()]
_NAME = StringConstraints(min_length=1, max_length=128)
#: A visible character; every name needs at least one.
_SEEN = rf"[^\s{EMOJI_FORM}{HIDDEN}]"
#: A name chosen by a person or a client: visible characters only, in NFC.
Name = Annotated[
    str,
    _NAME,
    AfterValidator(visible),
    AfterValidator(composed),
    AfterValidator(not_blank),
    WithJsonSchema(_text(rf"^[^{HIDDEN}]*{_SEEN}[^{HIDDEN}]*$", "Shopping")),
]
#: A name that a client cannot change later. A space at either end is refused, because it would be an invisible mistake.
NewIdentifier = Annotated[
    str,
    _NAME,
    AfterValidator(visible),
    AfterValidator(composed),
    AfterValidator(trimmed),
    AfterValidator(not_blank),
    WithJsonSchema(_text(rf"^{_SEEN}([^{HIDDEN}]*{_SEEN})?$", "agent-7")),
]
_IN_TAG = f"[^,{HIDDEN}]*"
_TAG_TEXT = rf"{_IN_TAG}[^\s,{EMOJI_FORM}{HIDDEN}]{_IN_TAG}"
Tag = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64),
    AfterValidator(visible),
    AfterValidator(without_comma),
    AfterValidator(composed),
    AfterValidator(not_blank),
    WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": 64, "pattern": f"^{_TAG_TEXT}$", "examples": ["shop"]}
    ),
]
Tags = Annotated[list[Tag], Field(max_length=32)]
#: Tags from comma-separated text.
TagList = Annotated[
    list[Tag],
    Field(max_length=32),
    BeforeValidator(tag_list),
    WithJsonSchema({"type": "string", "pattern": f"^{_TAG_TEXT}(,{_TAG_TEXT}){{0,31}}$", "examples": ["a,b"]}),
]
Memo = Annotated[str, StringConstraints(max_length=512), Plain(), example("Order 1024")]
#: A longer text, such as a task or the reason for a dispute.
Text = Annotated[str, StringConstraints(min_length=1, max_length=2_000), Plain()]
#: An address has at most 44 characters, a domain at most 253.
RecipientText = Annotated[str, StringConstraints(min_length=1, max_length=253), Plain(), example(_ADDRESS)]
#: The recipient of a payment. Malformed text raises `invalid_recipient`, like the text of an unknown recipient.
Recipient = Annotated[RecipientText, WrapValidator(recipient)]
Category = Annotated[str, AfterValidator(category), WithJsonSchema({"type": "string", "enum": list(CATEGORIES)})]
#: Printable ASCII without a space at either end, so that a key is the same in a header and in a body.
IdempotencyKey = Annotated[
    str,
    AfterValidator(idempotency_key),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}),
]
Cursor = Annotated[str, StringConstraints(min_length=1, max_length=512), example(_CURSOR)]
WHOLE_NUMBER = BeforeValidator(whole)  # place this validator after the limits, or the schema lacks them
PageSize = Annotated[int, Field(ge=1, le=100), WHOLE_NUMBER]


def _text_of(show: Callable[[int], str]) -> BeforeValidator:
    """Return the validator of a field that shows a record's integer as text."""
    return BeforeValidator(lambda value: show(value) if isinstance(value, int) else value)


_USDC = {"type": "string", "pattern": r"^[0-9]+\.[0-9]{2,6}$", "examples": ["12.50"]}
#: A decimal string from micro-USDC.
Usdc = Annotated[str, _text_of(format_usdc), WithJsonSchema(_USDC)]
#: A decimal string from any valid spelling of an amount, zero allowed.
LimitText = Annotated[str, _text_of(format_usdc), BeforeValidator(money), WithJsonSchema(_DECIMAL)]
#: An ISO 8601 timestamp from Unix milliseconds.
Time = Annotated[str, _text_of(iso_ms), WithJsonSchema(_TIMESTAMP)]
#: An ISO 8601 timestamp from Unix seconds, the chain's unit.
ChainTime = Annotated[str, _text_of(iso), WithJsonSchema(_TIMESTAMP)]
#: Text from a record, or the empty string if the record has None.
TextOrEmpty = Annotated[str, BeforeValidator(lambda value: value or "")]
#: Base64 from bytes.
Base64 = Annotated[str, BeforeValidator(lambda value: b64encode(value) if isinstance(value, bytes) else value)]
Address = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$", "examples": [_ADDRESS]})
]
#: The recipient of a transaction in a response: an address, or a domain as the request named it.
RecipientShown = Annotated[str, example(_ADDRESS)]
#: The signature of a transaction.
Signature = Annotated[
    str, example("GSVddtw6XXirvwr1T9Ncu189Cupiqg9SVbQZn5waWQg9R2vZ4aawVtCwYpCzNa7pstBu79s3s9LT2fwkX3hv3fX")
]
#: `sha256:` and a hash.
Digest = Annotated[str, example("sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
#: A hash built from its hexadecimal digits. Like every conversion here, it leaves the values of a stored response
#: unchanged.
HexHash = Annotated[Digest, BeforeValidator(lambda digits: f"sha256:{digits.removeprefix('sha256:')}")]
Currency = Annotated[str, example("USDC")]
Warnings = Annotated[list[str], example(["The address is a vault."])]
#: A confirmation that skips a check. Its example is false, so that a copied example skips no check.
Confirmation = Annotated[bool, example(False)]


def _id(shown: str) -> WithJsonSchema:
    """Return the schema of an id with the prefix of the example."""
    pattern = f"^{shown.partition('_')[0]}_[0-9A-Za-z]+$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [shown]})


WalletId = Annotated[str, _id("wal_VDycjSYafbJkJfSRKajygt")]
PolicyId = Annotated[str, _id("pol_VzU53AtbSxsDL2M2jvnpAT")]
BudgetId = Annotated[str, _id("bud_T4kWq8ZxJm2VfNc7RbYp5L")]
TransactionId = Annotated[str, _id("tx_KiEQfkf6fLwrUKr9MX11QZ")]
EscrowId = Annotated[str, _id("escrow_8NwmQ2nfT6xEzUuBp4v5Yd")]
AllowanceId = Annotated[str, _id("alw_9RkWm3XtY6fQpZs2nVbHcD")]
ApprovalId = Annotated[str, _id("apr_3mJr7AoUXx2Wqd4pTkBnEs")]
ExportId = Annotated[str, _id("exp_5T1wWcHn8sYqL6bVfRk9Jd")]
WebhookId = Annotated[str, _id("wh_Q7xJt2uGm4kBv9eZpN6sAc")]
DeliveryId = Annotated[str, _id("dlv_B2kYw8rXf5TqHn3mLcV7uE")]
EventId = Annotated[str, _id("evt_H4sNc9zKq1VdWp6xRbT8mY")]
KeyId = Annotated[str, _id("key_M3vLp8fRz2JtXk5wQnB7cG")]
PersonId = Annotated[str, _id("per_W8tRk3nZp5XcQy7mVb2LdH")]
RequestId = Annotated[str, _id("req_NaLTW5KRAT7GNcwLfd2Mhr")]
#: Ids in requests. Any text is accepted, because a malformed id gets the same error as an unknown one.
WalletRef = Annotated[Identifier, example("wal_VDycjSYafbJkJfSRKajygt")]
PolicyRef = Annotated[Identifier, example("pol_VzU53AtbSxsDL2M2jvnpAT")]
BudgetRef = Annotated[Identifier, example("bud_T4kWq8ZxJm2VfNc7RbYp5L")]


class Page(Query):
    """The paging parameters of list endpoints."""

    limit: Annotated[PageSize, example(20)] = 20
    """The number of rows on the page."""
    cursor: Cursor | None = None
    """The value of `next_cursor` on the previous page."""


class ListResponse(ResponseBody, Generic[T]):
    """One page of a list."""

    data: list[T]
    """The rows of the page."""
    has_more: bool
    """True if there is a next page."""
    next_cursor: Annotated[str | None, example("eyJhZnRlciI6MTAyNH0")]
    """The value of `cursor` for the next page; null on the last page."""

    @classmethod
    def showing(cls, found: RecordPage[R], shown: Callable[[R], T]) -> Self:
        """Return the response for a page of records. ``shown`` converts each record."""
        data = [shown(one) for one in found.data]
        return cls(data=data, has_more=found.has_more, next_cursor=found.next_cursor)


def optional(convert: Callable[[R], T], value: R | None) -> T | None:
    """Return the converted value; None stays None."""
    return None if value is None else convert(value)


class ChangeBody(Body):
    """The body of a request that changes something."""

    idempotency_key: IdempotencyKey | None = None
    """A random key chosen by the client.

    Within 24 hours, a replay of a successful request gets the stored response and has no effect. A refused request that
    is repeated is judged again.
    """


class EmptyBody(ChangeBody):
    """The body of requests that need no input except their path."""
