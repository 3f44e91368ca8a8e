"""The API reference, made from the OpenAPI document: an overview, a page per object and a page per operation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from starlette.routing import Route

from app.core.errors import CATALOGUE
from app.docs.layout import DocPage, object_title
from app.docs.samples import Sample
from app.docs.text import fence, table

Json = Mapping[str, Any]

_JSON = "application/json"
_FIELDS = ("Type", "Meaning")
_BOUNDS = (
    *(("minimum", "at least {}"), ("maximum", "at most {}"), ("maxLength", "at most {} characters")),
    ("maxItems", "at most {} entries"),
)
_ABOUT = (
    "Every operation needs `Authorization: Bearer <API key>`. Requests that change state accept an idempotency key in "
    "the field `idempotencyKey` or the header `Idempotency-Key`. Send a new random key for each intended change, and "
    "the same key to retry it. In the samples, `URL` is the service's address, `KEY` the API key and `TOKEN` the "
    "session token. This reference is also available as an [OpenAPI document](/openapi.json). "
    "[Conventions](/docs/reference), [errors](/docs/errors) and the "
    "[routes of the service itself](/docs/api/service) have their own pages."
)


class Interface:
    """The pages of an OpenAPI document's operations. One more page lists the routes in ``others`` and their effects."""

    def __init__(self, document: Json, others: Sequence[Route]) -> None:
        self._document, self._others = document, others
        self._schemas: Json = document["components"]["schemas"]
        self._tags: dict[str, list[tuple[str, str, Json]]] = {tag["name"]: [] for tag in document["tags"]}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                self._tags[operation["tags"][0]].append((path, method, operation))
        self._homes = self._objects()

    @cached_property
    def operations(self) -> Mapping[str, Mapping[str, str]]:
        """For the path of each object's page: the titles of its operations, by the path of the operation's page."""
        return {
            f"/docs/api/{tag}": {_path(one): _title(one) for _, _, one in members}
            for tag, members in self._tags.items()
        }

    def pages(self) -> Iterator[DocPage]:
        """Yield all pages in their order."""
        yield self._overview()
        for tag, members in self._tags.items():
            yield self._object(tag)
            yield from (self._operation(*one) for one in members)
        yield DocPage("/docs/api/service", "Service", f"# Service\n\n{self._routes()}")

    def _overview(self) -> DocPage:
        info = self._document["info"]
        parts = [f"# {info['title']}\n\n{info['description']}\n\n{_ABOUT}\n"]
        for tag, members in self._tags.items():
            parts.append(f"## [{object_title(tag)}](/docs/api/{tag}) {{#{tag}}}\n\n{self._about(tag)}\n")
            parts += [
                f"### [`{method.upper()} {path}`]({_path(one)}) {{#{one['operationId']}}}\n\n{one['summary']}\n"
                for path, method, one in members
            ]
        parts.append("## [Service](/docs/api/service) {#service}\n\nHealth, metrics, documents and the dashboard.\n")
        parts.append("## Objects {#objects}\n")
        parts += [f"### [{name}]({self._home(name)}) {{#object-{name}}}\n" for name in self._homes]
        return DocPage("/docs/api", "API reference", "\n".join(parts))

    def _object(self, tag: str) -> DocPage:
        rows = ((f"[`{method.upper()} {path}`]({_path(one)})", one["summary"]) for path, method, one in self._tags[tag])
        parts = [f"# {object_title(tag)}\n\n{self._about(tag)}\n\n{table(('Operation', 'Effect'), rows)}"]
        for name in (name for name, home in self._homes.items() if home == tag):
            about = self._schemas[name].get("description", "")
            parts.append(f"## {name} {{#object-{name}}}\n\n{about}\n\n{self._fields('Field', name)}")
        return DocPage(f"/docs/api/{tag}", object_title(tag), "\n".join(parts))

    def _operation(self, path: str, method: str, operation: Json) -> DocPage:
        answer = operation["responses"]["200"]["content"][_JSON]["schema"]
        usual, *others = map(_name, answer.get("anyOf", [answer]))
        roles = ", ".join(f"`{one}`" for one in operation["x-roles"])
        parts = [
            f"# {_title(operation)}\n\n`{method.upper()} {path}`\n",
            f"{operation['summary']} {operation['description']}\n",
            f"Roles: {roles}. Cost: {operation['x-weight']} of the [rate limit](/docs/guides/limits#rate-limits).\n",
        ]
        given = (
            _row(one["name"], one["schema"], one["description"], one["required"], self)
            for one in operation["parameters"]
        )
        sections = {"Parameters": table(("Parameter", *_FIELDS), given)}
        if "requestBody" in operation:
            name = _name(operation["requestBody"]["content"][_JSON]["schema"])
            sections["Body"] = self._fields("Field", name, body=True)
        links = [f"Or [{name}]({self._home(name)}): {self._schemas[name]['description']}\n" for name in others]
        sections["Answer"] = "\n".join([self._fields("Field", usual), *links])
        sections["Errors"] = _errors(operation)
        parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
        sample = Sample(
            path, method, operation, rows=method == "get" and "data" in self._schemas[usual].get("properties", {})
        )
        shown = json.dumps(self._example(usual), indent=2, ensure_ascii=False)
        requests = fence("sh", sample.curl()) + fence("python", sample.python()) + fence("ts", sample.typescript())
        samples = f"## Request\n\n{requests}\n## Example answer\n\n{fence('json', shown)}"
        return DocPage(_path(operation), _title(operation), "\n".join(parts), samples)

    def _example(self, name: str) -> Json:
        schema = self._schemas[name]
        if "anyOf" in schema:
            return self._example(_name(schema["anyOf"][0]))
        fields = schema.get("properties", {})
        return {field: schema["examples"][0] for field, schema in fields.items() if "examples" in schema}

    def _about(self, tag: str) -> str:
        return next(str(one["description"]) for one in self._document["tags"] if one["name"] == tag)

    def _fields(self, title: str, name: str, *, body: bool = False) -> str:
        schema = self._schemas[name]
        required = schema.get("required", ()) if body else ()
        fields = sorted(schema.get("properties", {}).items(), key=lambda one: one[0] not in required)
        return table(
            (title, *_FIELDS),
            (_row(field, one, one.get("description", ""), field in required, self) for field, one in fields),
        )

    def _objects(self) -> dict[str, str]:
        """Map each object to the tag whose page describes it: the first tag that refers to the object."""
        homes: dict[str, str] = {}
        for tag, members in self._tags.items():
            waiting = [
                name for _, _, one in members for name in _references([one.get("requestBody"), one["responses"]["200"]])
            ]
            others = {
                _name(kind)
                for _, _, one in members
                for kind in one["responses"]["200"]["content"][_JSON]["schema"].get("anyOf", [])[1:]
            }
            seen: set[str] = set()
            while waiting:
                name = waiting.pop()
                if name not in seen:
                    seen.add(name)
                    inner = list(_references(self._schemas[name]))
                    others |= set(inner)
                    waiting += inner
            homes = {**dict.fromkeys(sorted(others), tag), **homes}
        return homes

    def _home(self, name: str) -> str:
        return f"/docs/api/{self._homes[name]}#object-{name}"

    def type_of(self, schema: Json) -> str:
        """Return a schema's type with its constraints, in Markdown."""
        if "anyOf" in schema:
            return " or ".join(self.type_of(one) for one in schema["anyOf"])
        if "enum" in schema or "const" in schema:
            return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
        if "$ref" in schema:
            return f"[{_name(schema)}]({self._home(_name(schema))})"
        bounds = [words.format(f"{schema[key]:,}") for key, words in _BOUNDS if key in schema]
        kind = str(schema.get("format", schema.get("type", "any")))
        if schema.get("type") == "array":
            kind = f"list of {self.type_of(schema['items'])}"
        return ", ".join([kind, *bounds])

    def _routes(self) -> str:
        rows = (
            (f"`{method} {route.path_format}`", " ".join((route.endpoint.__doc__ or "").split()))
            for route in self._others
            for method in sorted((route.methods or {"GET"}) - {"HEAD"})
        )
        return table(("Route", "Effect"), rows)


def _errors(operation: Json) -> str:
    kinds = [
        CATALOGUE[code]
        for status, response in operation["responses"].items()
        if status != "200"
        for code in response["description"].split(", ")
    ]
    rows = (
        (f"[`{one.code}`](/docs/errors/{one.code})", str(one.status), "yes" if one.retryable else "no", one.meaning)
        for one in kinds
    )
    return table(("Error", "Status", "Retry?", "Cause"), rows)


def _row(name: str, schema: Json, meaning: str, required: bool, interface: Interface) -> tuple[str, str, str]:
    return f"`{name}`{' **required**' if required else ''}", interface.type_of(schema), meaning


def _path(operation: Json) -> str:
    return f"/docs/api/{operation['operationId']}"


def _title(operation: Json) -> str:
    return str(operation["summary"]).partition(". ")[0].removesuffix(".")


def _name(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema and "/schemas/" in schema["$ref"]:
            yield _name(schema)
        # Skip examples, because they are values and not schemas.
        inner: Iterable[Any] = (value for key, value in schema.items() if key not in {"examples", "example"})
    else:
        inner = schema if isinstance(schema, list) else ()
    for one in inner:
        yield from _references(one)
