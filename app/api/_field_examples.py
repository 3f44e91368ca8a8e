"""Adds an example to every field and parameter of the OpenAPI document."""

import re
from typing import Any

from app.api.openapi_examples import IDENTIFIERS, VALUES

Json = dict[str, Any]

_IDENTIFIER = re.compile(r"\^([a-z]+)_\[")
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MISSING = object()


class FieldExamples:
    """Adds `examples` to schemas: the example of the field, else one for its type, else the one for its name."""

    def __init__(self, schemas: Json) -> None:
        self._schemas = schemas

    def complete(self) -> None:
        """Add an example to every property of every schema. A property without a known example stays unchanged."""
        found = {
            (name, field): self._of(schema, field, name)
            for name, one in self._schemas.items()
            for field, schema in one.get("properties", {}).items()
        }
        for (name, field), value in found.items():
            self._add(self._schemas[name]["properties"][field], value)

    def complete_parameter(self, parameter: Json) -> None:
        """Add an example to a parameter's schema, if one is known."""
        self._add(parameter["schema"], self._of(parameter["schema"], parameter["name"], ""))

    def _add(self, schema: Json, value: Any) -> None:
        if value is not _MISSING:
            schema["examples"] = [value]

    def _of(self, schema: Json, name: str, owner: str) -> Any:
        by_name = _CAPITAL.sub(r"_\1", name).lower()
        own = VALUES.get(f"{owner}.{name}", _MISSING)
        value = own if own is not _MISSING else self._from_type(schema)
        otherwise = True if schema.get("type") == "boolean" else _MISSING
        return VALUES.get(by_name, otherwise) if value is _MISSING else value

    def _from_type(self, schema: Json) -> Any:
        if "examples" in schema:
            return schema["examples"][0]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if "$ref" in schema:
            return self._of_object(schema["$ref"].rpartition("/")[2])
        for kind in schema.get("anyOf", ()):
            if (value := self._from_type(kind)) is not _MISSING:
                return value
        if identifier := _IDENTIFIER.match(schema.get("pattern", "")):
            return IDENTIFIERS[identifier[1]]
        if schema.get("type") == "array":
            item = self._from_type(schema["items"])
            return _MISSING if item is _MISSING else [item]
        return _MISSING

    def _of_object(self, name: str) -> Any:
        schema = self._schemas[name]
        if "properties" not in schema:
            return self._from_type(schema)
        found = {field: self._of(one, field, name) for field, one in schema["properties"].items()}
        return {field: value for field, value in found.items() if value is not _MISSING}
