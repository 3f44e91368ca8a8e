"""Shows the audit log."""

from app.access.keyring import Principal
from app.audit.models import AuditLogEntry, AuditLogPage, ListAuditLog, UnreadableAuditEntry
from app.store.audit import LogEntry, LogFilter, log_entries
from app.store.audit_actions import ACTIONS
from app.store.audit_rows import UnreadableEntry
from app.submission.context import Service


async def page(service: Service, principal: Principal, query: ListAuditLog) -> AuditLogPage:
    """Return one page of the organisation's log, highest number first."""
    wanted = LogFilter(query.actor, query.action, query.object, query.from_, query.to)
    found = await service.db.read(
        lambda conn: log_entries(conn, principal.org, wanted, limit=query.limit, cursor=query.cursor)
    )
    data, unreadable = [], []
    for entry in found.data:
        if isinstance(entry, LogEntry) and entry.action in ACTIONS:
            data.append(AuditLogEntry.of(entry))
        else:
            broken = UnreadableEntry(entry.number, "action") if isinstance(entry, LogEntry) else entry
            unreadable.append(UnreadableAuditEntry(number=broken.number, reason=broken.reason))
    return AuditLogPage(data=data, unreadable=unreadable, has_more=found.has_more, next_cursor=found.next_cursor)
