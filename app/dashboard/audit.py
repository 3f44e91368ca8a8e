"""The audit log: recorded actions and their actors, for the whole organisation or for one object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app.access.auth import ADMINS
from app.audit import service as audit
from app.audit.models import AuditLogEntry, ListAuditLog
from app.dashboard.actors import names_of
from app.dashboard.forms.filters import filtered
from app.dashboard.forms.formatting import Words, moment, short
from app.dashboard.pages import View, page
from app.store.audit_actions import ACTIONS


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry of the audit log, and its actor's name as shown on a page."""

    entry: AuditLogEntry
    who: Words

    @property
    def actor(self) -> str:
        """The actor as the audit log's filter expects it, such as `person:…`."""
        return str(self.entry.actor)

    @property
    def details(self) -> list[tuple[str, Words]]:
        """The entry's details that have a value, each with its name."""
        return [
            (name, _text(name, value)) for name, value in self.entry.details.items() if value not in (None, "", [], {})
        ]


@page("/audit", roles=ADMINS)
async def show(view: View) -> Response:
    """Show the audit log. If a filter is invalid, show no entry and a message."""
    found, listed = await filtered(view, ListAuditLog, audit.page, "audit")
    return view.render(
        "audit.html",
        entries=await recorded(view, found.data),
        unreadable=found.unreadable,
        actions=sorted(ACTIONS),
        **listed,
    )


async def about(view: View, identifier: str, limit: int) -> list[AuditLine]:
    """Return the newest entries about an object."""
    query = ListAuditLog(object=identifier, limit=limit)
    return await recorded(view, (await audit.page(view.service, view.principal, query)).data)


async def recorded(view: View, entries: Sequence[AuditLogEntry]) -> list[AuditLine]:
    """Return entries with the names of their actors."""
    names = await names_of(view.service, view.principal.org, {one.actor for one in entries})
    return [AuditLine(one, names[one.actor]) for one in entries]


def _text(name: str, value: Any) -> Words:
    """Return a detail as shown on a page. Ids and signatures are shortened: readers only compare them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at") and isinstance(value, str):
        return moment(value)
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if {" ", ":"} & set(text) else short(text)
