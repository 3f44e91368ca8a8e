"""Renders the pages that need no OpenAPI document: start page, guides, errors, events, settings and reference."""

import json
from http import HTTPStatus
from typing import Any

from pydantic_core import PydanticUndefined

from app.core.error_catalogue import ErrorKind
from app.core.errors import CATALOGUE, ApiError, PolicyViolationError
from app.core.event_catalogue import EVENTS, EventKind
from app.core.settings import Settings
from app.docs.layout import GUIDES, DocPage
from app.docs.text import fence, source, table
from app.store.audit_actions import ACTIONS

_REQUEST_ID = "req_NaLTW5KRAT7GNcwLfd2Mhr"
_ABOUT_EVENTS = (
    "`GET /v1/events` lists events, and webhooks deliver them. Each event has `event_id`, `event` (its type), "
    "`timestamp` and the fields of its type. The list adds `severity` and `summary`. Events are kept for 90 days "
    "unless the operator of the service has set another time."
)


def start_page(base_url: str) -> DocPage:
    """Return the first page: an introduction, and the quick start with this service's own address."""
    text = source("start.md").replace("http://127.0.0.1:8402", base_url)
    return DocPage("/docs", "Quick start", text, file="start.md")


def guide_page(name: str) -> DocPage:
    """Return the page of a guide of `GUIDES`."""
    return DocPage(f"/docs/guides/{name}", GUIDES[name], guide_text(name), file=f"guides/{name}.md")


def guide_text(name: str) -> str:
    """Return the Markdown of a guide of `GUIDES`."""
    return source(f"guides/{name}.md")


def reference_page() -> DocPage:
    """Return the page of conventions, statuses and values, with all actions of the audit log."""
    actions = table(("Action", "Meaning"), ((f"`{name}`", text) for name, text in ACTIONS.items()))
    more = (
        "## Endpoints\n\nThe [API reference](/docs/api) has all endpoints.\n\n"
        "## Actions\n\nThe audit log records these actions. An entry is stored together with the requested change, "
        f"before the chain confirms it.\n\n{actions}"
    )
    return DocPage("/docs/reference", "Reference", f"{source('reference.md')}\n{more}", file="reference.md")


def errors_page() -> DocPage:
    """Return the page of all error codes."""
    rows = (
        (f"[`{kind.code}`](/docs/errors/{kind.code})", str(kind.status), _retry(kind), kind.meaning)
        for kind in CATALOGUE.values()
    )
    about = (
        'Every error has the body `{"error": {"code", "message", "docs", "request_id"}}`; `docs` links to the page of '
        "its code. `yes` under `Retry?` means that the same request, with the same idempotency key, can succeed later."
    )
    text = f"# Errors\n\n{about}\n\n{table(('Code', 'Status', 'Retry?', 'Cause'), rows)}"
    return DocPage("/docs/errors", "Errors", text)


def _retry(kind: ErrorKind) -> str:
    return "yes" if kind.retryable else "no"


def error_page(kind: ErrorKind, base_url: str) -> DocPage:
    """Return the page of an error code, with cause, example and remedy. Error responses link to it in `docs`."""
    example = _example(kind).envelope(docs=f"{base_url}/docs/errors/{kind.code}", request_id=_REQUEST_ID)
    answer = f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\n\n{json.dumps(example, indent=2)}"
    text = (
        f"[Errors](/docs/errors)\n\n# `{kind.code}`\n\n"
        f"HTTP status {kind.status} · {kind.area} · Retry: {_retry(kind)}\n\n"
        f"## Cause\n\n{kind.meaning}\n\n## Example\n\n{fence('json', answer)}\n## What to do\n\n{kind.remedy}\n"
    )
    return DocPage(f"/docs/errors/{kind.code}", f"{kind.code}, error {kind.status}", text)


def _example(kind: ErrorKind) -> ApiError:
    if kind.code == "policy_violation":
        violation = {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"}
        wallet, policy = "wal_VDycjSYafbJkJfSRKajygt", "pol_VzU53AtbSxsDL2M2jvnpAT"
        return PolicyViolationError(
            violation=violation, wallet_id=wallet, policy_id=policy, tx_id="tx_KiEQfkf6fLwrUKr9MX11QZ"
        )
    fields: dict[str, dict[str, Any]] = {
        "not_ready": {"reasons": ["chain"]},
        "sol_limit_reached": {"retry_at": "2026-05-02T00:00:00.000Z"},
        "chain_unavailable": {"tx_id": "tx_KiEQfkf6fLwrUKr9MX11QZ"},
    }
    return ApiError(kind.code, fields=fields.get(kind.code))


def events_page() -> DocPage:
    """Return the page of all events."""
    sections = "\n".join(map(_event, EVENTS.values()))
    return DocPage("/docs/events", "Events", f"# Events\n\n{_ABOUT_EVENTS}\n\n{sections}")


def _event(kind: EventKind) -> str:
    severity = f"{kind.severity}, {kind.exception}" if kind.exception else kind.severity
    fields = [*(f"`{name}`" for name in kind.fields), *(f"`{name}` (in some cases)" for name in kind.optional)]
    return f"## `{kind.type}` {{#{kind.type}}}\n\n{kind.meaning}\n\nSeverity: {severity}. Fields: {', '.join(fields)}\n"


def settings_page() -> DocPage:
    """Return the page of all settings."""
    prefix = Settings.model_config.get("env_prefix", "")
    parts = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else json.dumps(field.default, default=str)
        usual = f" Default: `{default}`." if default else ""
        parts.append(f"### `{prefix}{name.upper()}` {{#{name}}}\n\n{field.description or ''}{usual}\n")
    about = (
        "Each setting is an environment variable of `agent-vault`. Durations are in seconds unless the name has "
        "another unit."
    )
    return DocPage("/docs/settings", "Settings", f"# Settings\n\n{about}\n\n" + "\n".join(parts))
