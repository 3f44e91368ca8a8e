"""Renders the pages that need no OpenAPI document: start page, guides, errors, events, settings and reference."""

import json
import re
from html import escape
from http import HTTPStatus
from typing import Any

from pydantic_core import PydanticUndefined

from app.core.error_catalogue import ErrorKind
from app.core.errors import CATALOGUE, ApiError, PolicyViolationError
from app.core.settings import Settings
from app.docs.layout import GUIDES, DocPage
from app.docs.text import inline, markdown, source, table
from app.events.catalogue import EVENTS, EventKind

#: A line of a guide that is replaced by a table of the reference.
_QUOTATION = re.compile(r"^<!-- reference: (.+) -->$", re.MULTILINE)
_REQUEST_ID = "req_NaLTW5KRAT7GNcwLfd2Mhr"
_ABOUT_EVENTS = (
    "`GET /v1/events` lists events, and webhooks deliver them. Each event has `event_id`, `event` (its type), "
    "`timestamp` and the fields of its type. The list adds `severity` and `summary`. Events are kept for 90 days "
    "unless the operator of the service has set another time."
)


def start_page(base_url: str) -> DocPage:
    """Return the first page: an introduction, and the quick start with this service's own address."""
    text = source("start.md").replace("http://127.0.0.1:8402", base_url)
    return DocPage("/docs", "Quick start", markdown(text))


def guide_page(name: str) -> DocPage:
    """Return the page of a guide of `GUIDES`."""
    text = _QUOTATION.sub(lambda quoted: _table_of_reference(quoted[1]), guide_text(name))
    return DocPage(f"/docs/guides/{name}", GUIDES[name], markdown(text))


def _table_of_reference(section: str) -> str:
    """Return the table in a section of the reference as Markdown, without the column of tests."""
    text = source("reference.md").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return "\n".join(row.rstrip("| ").rpartition("|")[0] + "|" for row in rows)


def guide_text(name: str) -> str:
    """Return the Markdown of a guide of `GUIDES`."""
    return source(f"guides/{name}.md")


def reference_page() -> DocPage:
    """Return the page that lists all promises to clients, each with its tests."""
    return DocPage("/docs/reference", "Promises and their tests", markdown(source("reference.md")))


def errors_page() -> DocPage:
    """Return the page of all error codes."""
    rows = (
        f'<tr><td><a href="/docs/errors/{kind.code}"><code>{kind.code}</code></a></td><td>{kind.status}</td>'
        f"<td>{inline(kind.meaning)}</td></tr>"
        for kind in CATALOGUE.values()
    )
    about = (
        'Every error has the body <code>{"error": {"code", "message", "docs", "request_id"}}</code>; '
        "<code>docs</code> links to the page of its code."
    )
    return DocPage(
        "/docs/errors", "Errors", f"<h1>Errors</h1><p>{about}</p>{table(('Code', 'Status', 'Meaning'), rows)}"
    )


def error_page(kind: ErrorKind, base_url: str) -> DocPage:
    """Return the page of an error code, with cause, example and remedy. The error's member `docs` links to it."""
    example = _example(kind).envelope(docs=f"{base_url}/docs/errors/{kind.code}", request_id=_REQUEST_ID)
    return DocPage(
        f"/docs/errors/{kind.code}",
        kind.code,
        f'<p><a href="/docs/errors">Errors</a></p><h1><code>{escape(kind.code)}</code></h1>'
        f"<p>HTTP status {kind.status} · {escape(kind.area)}</p><h2>Cause</h2><p>{inline(kind.meaning)}</p>"
        f"<h2>Example</h2><pre>HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\n\n"
        f"{escape(json.dumps(example, indent=2))}</pre>"
        f"<h2>What to do</h2><p>{inline(kind.remedy)}</p>",
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


def events_page() -> DocPage:
    """Return the page of all events."""
    sections = "".join(_event(kind) for kind in EVENTS.values())
    return DocPage("/docs/events", "Events", f"<h1>Events</h1><p>{inline(_ABOUT_EVENTS)}</p>{sections}")


def _event(kind: EventKind) -> str:
    severity = f"{kind.severity}, {kind.exception}" if kind.exception else kind.severity
    fields = [*(f"`{name}`" for name in kind.fields), *(f"`{name}` (in some cases)" for name in kind.optional)]
    return (
        f'<h2 id="{kind.type}"><code>{kind.type}</code></h2><p>{inline(kind.meaning)}</p>'
        f'<p class="muted">Severity: {severity}. Fields: {inline(", ".join(fields))}</p>'
    )


def settings_page() -> DocPage:
    """Return the page of all settings."""
    prefix = Settings.model_config.get("env_prefix", "")
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else json.dumps(field.default, default=str)
        rows.append(
            f'<tr id="{name}"><td><code>{prefix}{name.upper()}</code></td><td><code>{escape(default)}</code></td>'
            f"<td>{inline(field.description or '')}</td></tr>"
        )
    return DocPage(
        "/docs/settings",
        "Settings",
        "<h1>Settings</h1><p>Each setting is an environment variable of <code>agent-vault</code>. Durations are in "
        f"seconds unless the name has another unit.</p>{table(('Variable', 'Default', 'Meaning'), rows)}",
    )
