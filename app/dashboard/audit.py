"""The audit log: recorded actions and their actors, for the whole organisation or for one object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from starlette.responses import Response

from app.access.auth import ADMINS
from app.audit import service as audit
from app.audit.models import AuditLogEntry, ListAuditLog
from app.dashboard.actors import names_of
from app.dashboard.forms.audit_sentences import sentence
from app.dashboard.forms.filters import filtered
from app.dashboard.forms.formatting import Words, moment, short, usdc
from app.dashboard.pages import View, page
from app.store.approval_requests import amounts_of
from app.store.audit_actions import ACTIONS
from app.store.keys import key_names
from app.store.people import names_of_people
from app.store.spending_groups import names


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry of the audit log, and the names of its actor and object as shown on a page."""

    entry: AuditLogEntry
    who: Words
    about: Words | None

    @property
    def sentence(self) -> Words:
        """The entry as a sentence."""
        return sentence(self.entry.action, self.who, self.about, self.entry.details)

    @property
    def actor(self) -> str:
        """The actor as the audit log's filter expects it, such as `person:…`."""
        return str(self.entry.actor)

    @property
    def details(self) -> list[tuple[str, Words]]:
        """The entry's details that have a value, each with its name. The `changes` are in the sentence instead."""
        return [
            (name, _text(name, value))
            for name, value in self.entry.details.items()
            if value not in (None, "", [], {}) and name != "changes"
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
    org, ids = view.principal.org, {one.object for one in entries if one.object}
    who = await names_of(view.service, org, {one.actor for one in entries})
    about = await view.service.db.read(lambda conn: _objects(conn, org, ids)) if ids else {}
    return [AuditLine(one, who[one.actor], about.get(one.object or "") or short(one.object)) for one in entries]


def _objects(conn: Connection, org: str, ids: set[str]) -> dict[str, Words]:
    """Return the names of those objects that have one, and the amount and recipient of approvals."""
    found: dict[str, Words] = {org: "the organisation"}
    for kind in ("wallet", "budget", "policy"):
        found |= names(conn, org, kind, ids)
    found |= key_names(conn, org, ids) | names_of_people(conn, org, ids)
    return found | {one: f"{usdc(amount)} USDC to {payee}" for one, amount, payee in amounts_of(conn, org, ids)}


def _text(name: str, value: Any) -> Words:
    """Return a detail as shown on a page. Ids and signatures are shortened: readers only compare them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at") and isinstance(value, str):
        return moment(value)
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if {" ", ":"} & set(text) else short(text)
