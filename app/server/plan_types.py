"""All types of transactions that the service makes, by the names under which attempts are stored."""

from collections.abc import Mapping

from app.allowances import service as allowances
from app.approvals import service as approvals
from app.budgets import changes as budget_changes
from app.escrows import settlement
from app.organisations import pausing, roles
from app.organisations import service as organisations
from app.payments import service as payments
from app.policies import changes as policy_changes
from app.policies import service as policies
from app.recipients import service as recipients
from app.submission import offline
from app.submission.plan import PlanType
from app.wallets import archiving, forgetting, funding, sessions
from app.wallets import service as wallets

PLAN_TYPES: Mapping[str, PlanType] = {
    one.name: one
    for one in (
        *organisations.PLAN_TYPES,
        *pausing.PLAN_TYPES,
        *roles.PLAN_TYPES,
        *recipients.PLAN_TYPES,
        *budget_changes.PLAN_TYPES,
        *policies.PLAN_TYPES,
        *policy_changes.PLAN_TYPES,
        *wallets.PLAN_TYPES,
        *archiving.PLAN_TYPES,
        *forgetting.PLAN_TYPES,
        *funding.PLAN_TYPES,
        *sessions.PLAN_TYPES,
        *approvals.PLAN_TYPES,
        *payments.PLAN_TYPES,
        *settlement.PLAN_TYPES,
        *allowances.PLAN_TYPES,
        *offline.PLAN_TYPES,
    )
}
