"""Exports: files of transactions, their progress and their links."""

from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

from starlette.responses import Response

from app.access.auth import READERS
from app.core.timestamps import parse_iso_ms
from app.dashboard.forms.submit_once import once
from app.dashboard.forms.vault_lookup import vault_named
from app.dashboard.pages import View, action, page
from app.exports import service as exports
from app.exports.models import CreateExport, Export, ListExports
from app.store.wallets import labels

#: The highest progress shown, in per cent. The progress is an estimate, so it never shows an unfinished file as ready.
_MOST = 95


@page("/developers/exports", roles=READERS)
async def show(view: View) -> Response:
    """Show the exports, newest first."""
    found = await exports.page(view.service, view.principal, view.listed(ListExports, limit=30))
    ids = {one.wallet_id for one in found.data if one.wallet_id is not None}
    return view.render(
        "exports.html",
        exports=[(one, _progress(one, view.now)) for one in found.data],
        file=_file,
        months=_months(view.now),
        writing=any(one.status == "processing" for one in found.data),
        following=view.url("developers", "exports", cursor=found.next_cursor) if found.next_cursor else None,
        labels=await view.service.db.read(lambda conn: labels(conn, ids)) if ids else {},
    )


def _progress(export: Export, now: int) -> int:
    """Return the share of an export's estimated time that has passed, in per cent and at most 95."""
    began = parse_iso_ms(export.created_at)
    passed, needed = now - began, parse_iso_ms(export.estimated_ready_at) - began
    return max(0, min(_MOST, passed * 100 // max(needed, 1)))


def _file(url: str) -> str:
    """Return the link to an export's file or manifest, relative to the host of the page."""
    return urlunsplit(urlsplit(url)._replace(scheme="", netloc=""))


def _months(now: int) -> dict[str, tuple[date, date]]:
    """Return the first and the last day of two periods: this month up to today, and the last month."""
    today = datetime.fromtimestamp(now // 1000, UTC).date()
    before = today.replace(day=1) - timedelta(days=1)
    return {"This month": (today.replace(day=1), today), "Last month": (before.replace(day=1), before)}


def _day_after(typed: str) -> str:
    """Return the day after a date. Return any other text unchanged."""
    try:
        return (date.fromisoformat(typed) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return typed


@action("/developers/exports", roles=READERS, back=show)
async def create(view: View) -> str:
    """Request an export. The export includes the form's last day, whereas the API's `to` is exclusive."""
    wallet_id = (await vault_named(view, "wallet_id")).wallet_id if view.typed("wallet_id").strip() else None
    bom = view.typed("bom") == "true" and view.typed("format") != "json"
    body = view.body(CreateExport, wallet_id=wallet_id, to=_day_after(view.typed("to")), bom=bom)
    await once(view, body, Export, view.asks(exports.create, body))
    return view.url("developers", "exports", done="export-asked")
