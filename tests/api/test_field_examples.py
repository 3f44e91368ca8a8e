"""Every field and parameter of the OpenAPI document has a meaning and an example, and the examples are valid.

An idempotency key has no example: a model that copies one would give two payments the same key.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

from tests.support.needs import skip_or_fail
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_KEYS = ("idempotencyKey", "Idempotency-Key")
#: Prints the patterns on its input that are not valid both with and without the flag `u`.
_INVALID_PATTERNS = """
const patterns = JSON.parse(require("fs").readFileSync(0, "utf8"));
const fails = (one) => { try { new RegExp(one, "u"); new RegExp(one); return false; } catch { return true; } };
console.log(JSON.stringify(patterns.filter(fails)));
"""


async def _described(world: ServiceWorld) -> tuple[Json, list[tuple[str, Json, Json]]]:
    """Return the document, and where each property and parameter is, its description's place and its schema."""
    document: Json = (await world.client.get("/openapi.json")).json()
    return document, [*_properties(document), *_parameters(document)]


def _properties(document: Json) -> Iterator[tuple[str, Json, Json]]:
    for name, schema in document["components"]["schemas"].items():
        for field, one in schema.get("properties", {}).items():
            yield f"{name}.{field}", one, one


def _parameters(document: Json) -> Iterator[tuple[str, Json, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for one in operation["parameters"]:
                yield f"{method} {path} {one['name']}", one, one["schema"]


async def test_no_property_or_parameter_lacks_meaning_or_example(world: ServiceWorld) -> None:
    _, described = await _described(world)

    assert len(described) > 600
    assert [place for place, one, _ in described if not one.get("description", "").strip().endswith(".")] == []
    without = [place for place, _, schema in described if "examples" not in schema]
    assert without == [place for place, _, _ in described if place.endswith(_KEYS)]


async def test_every_example_is_valid_for_its_schema(world: ServiceWorld) -> None:
    document, described = await _described(world)

    faults: list[Any] = []
    for place, _, schema in described:
        validator = Draft202012Validator({**schema, "components": document["components"]})
        faults += [(place, error.message) for one in schema.get("examples", ()) for error in validator.iter_errors(one)]

    assert faults == []


async def test_every_pattern_is_valid_in_javascript_with_and_without_the_flag_u(world: ServiceWorld) -> None:
    document = (await world.client.get("/openapi.json")).json()
    patterns = sorted({text for name, text in _texts(document) if name == "pattern"})

    assert len(patterns) > 20
    wrong = ["[", "\U0001d173-\U0001d17a".join("[]"), r"\-"]
    assert await _invalid_in_javascript([*wrong, *patterns]) == wrong
    # Generators of TypeScript write the characters of these escapes into a literal, which ends at a line's end.
    assert not [pattern for pattern in patterns if re.search(r"\\u(000a|000d|2028|2029)", pattern)]


async def test_every_link_to_the_documentation_in_an_example_is_absolute(world: ServiceWorld) -> None:
    document = (await world.client.get("/openapi.json")).json()
    links = [text for name, text in _texts(document) if name == "docs"]

    assert len(links) > 5
    assert [link for link in links if not (urlsplit(link).scheme and urlsplit(link).netloc)] == []


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in the document with the name under which it is."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, name)


async def _invalid_in_javascript(patterns: list[str]) -> list[str]:
    """Return the patterns that Node.js refuses. Without Node.js, skip, or fail if CI=true."""
    node = shutil.which("node")
    if node is None:
        skip_or_fail("needs Node.js")
    process = await asyncio.create_subprocess_exec(
        str(node), "-e", _INVALID_PATTERNS, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(json.dumps(patterns).encode()), 60)
    invalid: list[str] = json.loads(out)
    return invalid
