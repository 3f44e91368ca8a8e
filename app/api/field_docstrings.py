"""Models that describe each field by the docstring after it.

Pydantic can read such docstrings when it creates a class, but this takes seconds for all models. This module reads them
only when a schema is made.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class DocumentedModel(BaseModel):
    """A model whose JSON schema describes each field by the docstring after it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of the model with the meanings of its fields."""
        found = handler(schema)
        described = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in field_docstrings(cls).items():
            shown = described.get(name) or described.get(cls.model_fields[name].alias or name)
            if shown is not None:
                shown["description"] = text
        return found


def field_docstrings(model: type) -> Mapping[str, str]:
    """Return the meanings of a model's fields by name, each on one line."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, DocumentedModel):
            found |= _of_module(one.__module__).get(one.__name__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of fields in a module, by class and field."""
    body = ast.parse(inspect.getsource(sys.modules[name])).body
    return {node.name: dict(_of_class(node)) for node in body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(field.target, ast.Name):
            yield field.target.id, " ".join(str(ast.literal_eval(after.value)).split())
