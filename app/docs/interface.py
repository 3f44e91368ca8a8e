"""Renders the API reference from the OpenAPI document, with a curl command for each operation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from starlette.routing import Route

from app.docs.layout import DocPage
from app.docs.text import inline, table

Json = Mapping[str, Any]

_JSON = "application/json"
_TITLES = ("Type", "Meaning", "Example")
#: Headers in the curl commands, each with its variable. Clients rarely send other headers.
_SHOWN = {"Idempotency-Key": "$NEW_KEY", "Session-Token": "$TOKEN"}


def interface_page(document: Json, others: Sequence[Route]) -> DocPage:
    """Return the page of all operations. The routes in ``others`` are described by their docstrings, not by OpenAPI."""
    return DocPage("/docs/api", "API reference", _Interface(document).page(others))


def curl_line(document: Json, path: str, method: str) -> str:
    """Return a shell command that calls an operation with example values."""
    return _Interface(document).curl(path, method)


class _Interface:
    def __init__(self, document: Json) -> None:
        self._document = document
        self._schemas: Json = document["components"]["schemas"]

    def page(self, others: Sequence[Route]) -> str:
        tags: dict[str, list[str]] = {tag["name"]: [] for tag in self._document["tags"]}
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                tags[operation["tags"][0]].append(self._operation(method, path, operation))
        menu = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in (*tags, "service", "objects"))
        sections = "".join(
            f'<h2 id="{escape(tag)}">{escape(tag.capitalize())}</h2>{"".join(parts)}' for tag, parts in tags.items()
        )
        info = self._document["info"]
        return (
            f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
            "<p>Every operation needs <code>Authorization: Bearer &lt;API key&gt;</code>. Requests that change state "
            "accept an idempotency key in the field <code>idempotencyKey</code> or the header "
            "<code>Idempotency-Key</code>. Send a new random key for each intended change, here <code>$NEW_KEY</code>, "
            'and the same key to retry it. This reference is also available <a href="/openapi.json">as an OpenAPI '
            'document</a> and <a href="/docs/explorer">to try in the explorer</a>.</p>'
            f'<p class="row">{menu}</p>{sections}<h2 id="service">Service</h2>{_others(others)}'
            f'<h2 id="objects">Objects</h2>{self._objects()}'
        )

    def curl(self, path: str, method: str) -> str:
        operation = self._document["paths"][path][method]
        for one in operation["parameters"]:
            if one["in"] == "path":
                path = path.replace(f"{{{one['name']}}}", str(_example(one["schema"])))
        parts = ["curl -sS", f'"$URL{path}"', '-H "Authorization: Bearer $KEY"']
        headers = {one["name"] for one in operation["parameters"] if one["in"] == "header"} & _SHOWN.keys()
        parts += [f'-H "{name}: {_SHOWN[name]}"' for name in sorted(headers)]
        body = self._example_body(operation)
        if body is not None:
            parts += ['-H "Content-Type: application/json"', f"-d '{json.dumps(body)}'"]
        if method != ("get" if body is None else "post"):
            parts[0] += f" -X {method.upper()}"
        return " \\\n  ".join([" ".join(parts[:2]), *parts[2:]])

    def _example_body(self, operation: Json) -> Any:
        """Return an example of the body, or None if the operation needs no body."""
        if "requestBody" not in operation:
            return None
        media = operation["requestBody"]["content"][_JSON]
        if "example" in media:
            return media["example"]
        schema = self._schemas[_name(media["schema"])]
        found = {name: _example(schema["properties"][name]) for name in schema.get("required", ())}
        return found or None

    def _operation(self, method: str, path: str, operation: Json) -> str:
        parts = [
            f'<h3 id="{escape(operation["operationId"])}">{_method(method)} {escape(path)}</h3>',
            f"<p>{inline(operation['summary'])} {inline(operation['description'])}</p>",
            f"<pre>{escape(self.curl(path, method))}</pre>",
        ]
        parameters = operation["parameters"]
        if parameters:
            rows = (_row(one["name"], one["schema"], one["description"], one["required"]) for one in parameters)
            parts.append(table(("Parameter", *_TITLES), rows))
        if "requestBody" in operation:
            parts.append(self._fields("Body", _name(operation["requestBody"]["content"][_JSON]["schema"])))
        parts.append(self._answers(operation["responses"]["200"]["content"][_JSON]["schema"]))
        codes = [
            f'<a href="/docs/errors/{code}"><code>{code}</code></a>'
            for status, response in operation["responses"].items()
            if status != "200"
            for code in response["description"].split(", ")
        ]
        parts.append(f'<p class="muted">Errors: {", ".join(codes)}</p>')
        return "".join(parts)

    def _answers(self, schema: Json) -> str:
        """Return the table of a response, and links to its alternatives, as HTML."""
        usual, *others = map(_name, schema.get("anyOf", [schema]))
        links = "".join(f"<p>Or {_link(name)}: {inline(self._schemas[name]['description'])}</p>" for name in others)
        return self._fields("Answer", usual) + links

    def _fields(self, title: str, name: str) -> str:
        schema = self._schemas[name]
        required = schema.get("required", ()) if title == "Body" else ()
        rows = (
            _row(field, one, one.get("description", ""), field in required)
            for field, one in schema.get("properties", {}).items()
        )
        return table((title, *_TITLES), rows)

    def _objects(self) -> str:
        """Return the tables of the schemas that other schemas or alternative responses refer to, as HTML."""
        schemas = [*self._schemas.values(), *_alternatives(self._document)]
        inner = sorted({name for schema in schemas for name in _references(schema)})
        return "".join(
            f'<h3 id="object-{name}">{name}</h3><p>{inline(self._schemas[name].get("description", ""))}</p>'
            f"{self._fields('Field', name)}"
            for name in inner
        )


def _others(routes: Sequence[Route]) -> str:
    return "".join(
        f"<h3>{_method(method)} {escape(route.path)}</h3><p>{inline(route.endpoint.__doc__ or '')}</p>"
        for route in routes
        for method in sorted((route.methods or {"GET"}) - {"HEAD"})
    )


def _method(name: str) -> str:
    return f'<span class="method">{name.upper()}</span>'


def _row(name: str, schema: Json, meaning: str, required: bool) -> str:
    mark = ' <span class="required">required</span>' if required else ""
    return (
        f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{_type(schema)}</td><td>{inline(meaning)}</td>"
        f'<td class="example"><code>{escape(json.dumps(_example(schema)))}</code></td></tr>'
    )


def _name(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _link(name: str) -> str:
    return f'<a href="#object-{name}">{name}</a>'


def _alternatives(document: Json) -> Iterator[Json]:
    """Yield the alternative responses of all operations."""
    for methods in document["paths"].values():
        for operation in methods.values():
            yield from operation["responses"]["200"]["content"][_JSON]["schema"].get("anyOf", [])[1:]


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield _name(schema)
        # An example is not a schema.
        inner: Iterable[Any] = (value for key, value in schema.items() if key != "examples")
    else:
        inner = schema if isinstance(schema, list) else ()
    for one in inner:
        yield from _references(one)


def _example(schema: Json) -> Any:
    """Return a schema's example, or a mark if it has none. A test fails if a field or parameter has none."""
    return schema.get("examples", ["…"])[0]


def _type(schema: Json) -> str:
    """Return a schema's type as HTML."""
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(escape(str(one)) for one in schema["enum"])
    if "const" in schema:
        return escape(str(schema["const"]))
    if "$ref" in schema:
        return _link(_name(schema))
    if schema.get("type") == "array":
        return f"{_type(schema['items'])}[]"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema] + (
        [f"at most {schema['maxLength']} characters"] if "maxLength" in schema else []
    )
    kind = str(schema.get("format", schema.get("type", "any")))
    return escape(f"{kind} ({', '.join(bounds)})" if bounds else kind)
