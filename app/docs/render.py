"""Renders the HTML pages: the interface, the errors, the events, the settings, the guides and the reference."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from markdown_it import MarkdownIt
from pydantic_core import PydanticUndefined
from starlette.routing import Route

from app.core.error_catalogue import ErrorKind
from app.core.errors import CATALOGUE, ApiError, PolicyViolationError
from app.core.settings import Settings
from app.events.catalogue import EVENTS, EventKind

GUIDES: Mapping[str, str] = {
    "escrow": "Escrow",
    "approvals": "Approvals",
    "alerts": "Alerts",
    "webhooks": "Webhooks",
    "exports": "Exports",
    "audit": "Audit log",
    "direct-use": "Direct use",
    "clusters": "Clusters",
    "operations": "Operations",
    "mcp": "Tools for agents (MCP)",
    "x402": "Paid resources (x402)",
    "tokens": "Keys in a token",
    "keys": "Keys",
}
"""Title of each guide by its name in file and path."""

_REQUEST_ID = "req_NaLTW5KRAT7GNcwLfd2Mhr"
_ABOUT_EVENTS = (
    "`GET /v1/events` lists events, and webhooks deliver them. Each event has `event_id`, `event` (its type), "
    "`timestamp` and the fields of its type; the list adds `severity` and `summary`. Events are kept for 90 days "
    "unless the operator of the service has set another time."
)
_HOME = '<p><a href="/docs">Agent Vault Payment Service</a></p>'


@cache
def _file(name: str) -> str:
    return files("app.docs").joinpath(name).read_text(encoding="utf-8")


STYLE_HASH = "sha256-" + b64encode(sha256(_file("style.css").encode()).digest()).decode()
"""Source expression of a Content-Security-Policy that allows the pages' own style and no other."""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_file("style.css")}</style>'
        f"</head><body>{body}</body></html>"
    )


def error_page(kind: ErrorKind, base_url: str) -> str:
    """Return the page that an error's `docs` links to, with cause, example and remedy."""
    example = _example(kind).envelope(docs=f"{base_url}/docs/errors/{kind.code}", request_id=_REQUEST_ID)
    return _page(
        kind.code,
        f"{_HOME}<h1><code>{escape(kind.code)}</code></h1>"
        f"<p>HTTP status {kind.status} · {escape(kind.area)}</p><h2>Cause</h2><p>{_inline(kind.meaning)}</p>"
        f"<h2>Example</h2><pre>HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\n\n"
        f"{escape(json.dumps(example, indent=2))}</pre>"
        f"<h2>What to do</h2><p>{_inline(kind.remedy)}</p>",
    )


def _example(kind: ErrorKind) -> ApiError:
    if kind.code == "policy_violation":
        violation = {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"}
        wallet, policy = "wal_VDycjSYafbJkJfSRKajygt", "pol_VzU53AtbSxsDL2M2jvnpAT"
        return PolicyViolationError(
            violation=violation, wallet_id=wallet, policy_id=policy, tx_id="tx_KiEQfkf6fLwrUKr9MX11QZ"
        )
    fields: dict[str, dict[str, Any]] = {
        "not_ready": {"reasons": ["chain"]},
        "chain_unavailable": {"tx_id": "tx_KiEQfkf6fLwrUKr9MX11QZ"},
    }
    return ApiError(kind.code, fields=fields.get(kind.code))


def events_page() -> str:
    """Return the page of all events."""
    sections = "".join(_event(kind) for kind in EVENTS.values())
    return _page("Events", f"{_HOME}<h1>Events</h1><p>{_inline(_ABOUT_EVENTS)}</p>{sections}")


def _event(kind: EventKind) -> str:
    severity = f"{kind.severity}, {kind.exception}" if kind.exception else kind.severity
    fields = [*(f"`{name}`" for name in kind.fields), *(f"`{name}` (in some cases)" for name in kind.optional)]
    return (
        f'<h2 id="{kind.type}"><code>{kind.type}</code></h2><p>{_inline(kind.meaning)}</p>'
        f'<p class="muted">Severity: {severity}. Fields: {_inline(", ".join(fields))}</p>'
    )


def settings_page() -> str:
    """Return the page of all settings."""
    prefix = Settings.model_config.get("env_prefix", "")
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else json.dumps(field.default, default=str)
        rows.append(
            f'<tr id="{name}"><td><code>{prefix}{name.upper()}</code></td><td><code>{escape(default)}</code></td>'
            f"<td>{_inline(field.description or '')}</td></tr>"
        )
    return _page(
        "Settings",
        f"{_HOME}<h1>Settings</h1><p>Each is an environment variable of <code>agent-vault</code>. Durations are in "
        f"seconds unless the name says otherwise.</p>{_table(('Variable', 'Default', ''), rows)}",
    )


@cache
def guide_page(name: str) -> str:
    """Return the page of a guide of `GUIDES`."""
    return _page(GUIDES[name], _HOME + _markdown(_file(f"guides/{name}.md")))


def guide_text(name: str) -> str:
    """Return the Markdown of a guide of `GUIDES`."""
    return _file(f"guides/{name}.md")


@cache
def reference_page() -> str:
    """Return the page that lists everything a client can rely on, with the test of each."""
    return _page("Reference", _HOME + _markdown(_file("reference.md")))


def _markdown(text: str) -> str:
    return str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))


def interface_page(document: Mapping[str, Any], others: Sequence[Route]) -> str:
    """Return the page of all operations, from the OpenAPI document, and of the ``others``, from their docstrings."""
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append(_operation(method, path, operation, document))
    menu = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in (*tags, "service", "errors"))
    pages = {"reference": "Reference", "events": "Events", "settings": "Settings"}
    pages |= {f"guides/{name}": title for name, title in GUIDES.items()}
    links = "".join(f'<a href="/docs/{name}">{escape(title)}</a>' for name, title in pages.items())
    sections = "".join(
        f'<h2 id="{escape(tag)}">{escape(tag.capitalize())}</h2>{"".join(parts)}' for tag, parts in tags.items()
    )
    info = document["info"]
    return _page(
        info["title"],
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
        "<p>Every request carries <code>Authorization: Bearer &lt;API key&gt;</code>. State-changing requests take an "
        "idempotency key in the field <code>idempotencyKey</code> or the header <code>Idempotency-Key</code>. "
        'This interface as an OpenAPI document: <a href="/openapi.json">/openapi.json</a>.</p>'
        f'<nav>{links}</nav><nav>{menu}</nav>{sections}<h2 id="service">Service</h2>{_others(others)}'
        f'<h2 id="errors">Errors</h2>{_errors()}',
    )


def _operation(method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    anchor = escape(operation["operationId"])
    parts = [
        f'<h3 id="{anchor}"><span class="method">{method.upper()}</span> {escape(path)}</h3>',
        f"<p>{_inline(operation['summary'])} {_inline(operation['description'])}</p>",
    ]
    parameters = [
        (one["name"], f"{one['in']}, {_type(one['schema'])}", one["required"]) for one in operation["parameters"]
    ]
    if parameters:
        parts.append(_fields("Parameter", parameters))
    if "requestBody" in operation:
        parts.append(_body("Body", operation["requestBody"], document))
    parts.append(_body("Answer", operation["responses"]["200"], document))
    codes = [
        f'<a href="/docs/errors/{code}"><code>{code}</code></a>'
        for status, response in operation["responses"].items()
        if status != "200"
        for code in response["description"].split(", ")
    ]
    parts.append(f'<p class="muted">Errors: {", ".join(codes)}</p>')
    return "".join(parts)


def _others(routes: Sequence[Route]) -> str:
    return "".join(
        f'<h3><span class="method">{method}</span> {escape(route.path)}</h3>'
        f"<p>{_inline(route.endpoint.__doc__ or '')}</p>"
        for route in routes
        for method in sorted((route.methods or {"GET"}) - {"HEAD"})
    )


def _body(title: str, body: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    schema = body["content"]["application/json"]["schema"]
    models = [_type(one) for one in schema.get("anyOf", [schema])]
    return "".join(
        _model(f"{title} ({name})" if len(models) > 1 else title, document["components"]["schemas"][name])
        for name in models
    )


def _model(title: str, schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return f"<p>{title}: {escape(_type(schema))}</p>"
    required = schema.get("required", ())
    return _fields(
        title, ((name, _type(kind), name in required) for name, kind in schema.get("properties", {}).items())
    )


def _fields(title: str, fields: Iterable[tuple[str, str, bool]]) -> str:
    rows = (
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{'required' if required else ''}</td></tr>"
        for name, kind, required in fields
    )
    return _table((title, "Type", ""), rows)


def _table(titles: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"{_type(schema['items'])}[]"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema] + (
        [f"at most {schema['maxLength']} characters"] if "maxLength" in schema else []
    )
    kind = str(schema.get("format", schema.get("type", "any")))
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _errors() -> str:
    rows = (
        f'<tr><td><a href="/docs/errors/{kind.code}"><code>{kind.code}</code></a></td><td>{kind.status}</td>'
        f"<td>{escape(kind.meaning)}</td></tr>"
        for kind in CATALOGUE.values()
    )
    return _table(("Code", "Status", "Meaning"), rows)


def _inline(text: str) -> str:
    """Return text as HTML, with code where it is between backquotes."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
