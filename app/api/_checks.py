"""Validators of the field types. Each returns the converted value, or raises an error with a message for clients."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.chain.rules import CATEGORIES
from app.core.money import parse_usdc
from app.core.text import CONTROL, has_control, has_hidden
from app.core.timestamps import parse_iso_ms


def money(value: Any) -> int:
    if not isinstance(value, str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        raise PydanticCustomError("invalid_amount", f"must be a decimal string{', not a number' if number else ''}")
    try:
        return parse_usdc(value, allow_zero=True)
    except ValueError as error:
        raise PydanticCustomError("invalid_amount", "{reason}", {"reason": str(error)}) from None


def check(holds: Callable[[Any], object], message: str, code: str = "value") -> Callable[[Any], Any]:
    """Return a validator that accepts a value only if ``holds`` is true for it."""

    def validate(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError(code, message)
        return value

    return validate


positive = check(bool, "must be greater than zero", "invalid_amount")
not_blank = check(str.strip, "must not be blank")
trimmed = check(lambda text: text == text.strip(), "must not begin or end with a space")
without_control = check(lambda text: not has_control(text), "must not contain control characters")
visible = check(
    lambda text: not has_hidden(text),
    "must not contain control, zero-width, invisible or direction-changing characters",
)
whole = check(lambda sent: not isinstance(sent, str) or re.fullmatch("-?[0-9]+", sent), "must be a whole number")
without_comma = check(lambda tag: "," not in tag, "must not contain a comma, which separates tags")
category = check(CATEGORIES.__contains__, f"must be one of {', '.join(CATEGORIES)}")


@dataclass(frozen=True, slots=True)
class Plain:
    """Text without control characters."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(without_control, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^[^{CONTROL}]*$"}


def idempotency_key(value: str) -> str:
    if not (value.isascii() and value.isprintable() and 0 < len(value.strip()) == len(value) <= 255):
        words = "must have 1 to 255 printable ASCII characters, without a space at either end"
        raise PydanticCustomError("idempotency_key", words)
    return value


def recipient(value: Any, validate: ValidatorFunctionWrapHandler) -> str:
    try:
        return str(validate(value))
    except ValidationError:
        raise PydanticCustomError(
            "invalid_recipient", "must be a string of 1 to 253 characters, without control characters"
        ) from None


def moment(value: Any) -> int:
    try:
        return parse_iso_ms(value if isinstance(value, str) else "")
    except ValueError as error:
        raise PydanticCustomError("timestamp", "{reason}", {"reason": str(error)}) from None


def utc_date(value: Any) -> date:
    try:
        if isinstance(value, str) and re.fullmatch("2[0-9]{3}-[0-9]{2}-[0-9]{2}", value, re.ASCII):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise PydanticCustomError("date", "must be a date from the year 2000 on, such as 2026-05-01")


def timestamp(value: Any) -> int:
    return moment(value) // 1000


def after_start(value: int, info: ValidationInfo) -> int:
    start = info.data.get("from_")
    if start is not None and value <= start:
        raise PydanticCustomError("period", "must be later than from")
    return value


def tag_list(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else []


def all_or_money(value: Any) -> int | None:
    return None if value == "all" else positive(money(value))
