"""Shows the audit log."""

from app.access.keyring import Principal
from app.audit.models import AuditLogEntry, AuditLogPage, ListAuditLog
from app.store.audit import LogEntry, LogFilter, log_entries
from app.submission.context import Service


async def page(service: Service, principal: Principal, query: ListAuditLog) -> AuditLogPage:
    """Return one page of the organisation's log, newest first."""
    wanted = LogFilter(query.actor, query.action, query.object, query.from_, query.to)
    found = await service.db.read(
        lambda conn: log_entries(conn, principal.org, wanted, limit=query.limit, cursor=query.cursor)
    )
    return AuditLogPage.of(found, shown)


def shown(entry: LogEntry) -> AuditLogEntry:
    """Return an entry as clients see it."""
    return AuditLogEntry(**{**entry.members(), "actor": entry.actor}, hash=entry.hash)
