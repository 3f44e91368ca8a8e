"""Route of the audit log."""

from app.access.auth import ADMINS
from app.api.operation import Call, operation
from app.audit import service as audit
from app.audit.models import AuditLogPage, ListAuditLog


@operation("GET /v1/audit-log", tag="audit", roles=ADMINS)
async def list_audit_log(call: Call, query: ListAuditLog) -> AuditLogPage:
    """List the audit log.

    The log shows each change of keys, sessions, policies, wallets and other objects with its actor, highest number
    first. Payments and escrows are not in the log, except for requests to paid resources (x402) and decisions of
    disputes. The log also shows sign-ins, exports, and requests refused for lack of a permission. The request creates
    the entry. If the request's transaction fails permanently, another entry records the failure. All filters must
    match. The guide "Audit log" explains how to check that nothing is missing.
    """
    return await audit.page(call.service, call.principal, query)
