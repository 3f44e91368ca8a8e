"""Approvals by people: of expenses, and of changes that weaken a policy's rule about approvals."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Column, Connection, ScalarSelect, exists, func, select

from app.core.actors import Actor
from app.database.columns import upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all
from app.store.keys import api_key_by_id
from app.store.people import passkeys
from app.store.people import table as people


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """A person's approval. `subject` is an approval's id or the digest of a change; times are Unix milliseconds."""

    subject: str
    person_id: str
    decided_at: int

    @property
    def by(self) -> Actor:
        """The person as an actor."""
        return Actor("person", self.person_id)


table = table_of("approval_decisions", ApprovalDecision, key=["subject", "person_id"])

_CAN_APPROVE = (people.c.removed_at.is_(None), people.c.role.in_(("operator", "admin")))
# The approvals of removed people and of viewers have lapsed.
_GIVEN = select(table).join(people, people.c.person_id == table.c.person_id).where(*_CAN_APPROVE)


def number_given(subject: Column[str]) -> ScalarSelect[int]:
    """Return the subquery that counts the valid approvals of the subject named in a column."""
    mine = _GIVEN.where(table.c.subject == subject).with_only_columns(func.count())
    return mine.correlate(subject.table).scalar_subquery()


def approvals_given(connection: Connection, subjects: Collection[str], since: int = 0) -> list[ApprovalDecision]:
    """Return the valid approvals of these subjects that were given after a Unix millisecond, oldest first."""
    query = _GIVEN.where(table.c.subject.in_(subjects), table.c.decided_at > since)
    return fetch_all(connection, ApprovalDecision, query.order_by(table.c.decided_at, table.c.person_id))


def put_approval(connection: Connection, given: ApprovalDecision) -> None:
    """Store an approval. A person's second approval of a subject replaces the first."""
    upsert(connection, table, columns_of(given), keys=["subject", "person_id"])


def count_approvers(connection: Connection, org: str) -> int:
    """Return the number of the organisation's operators and admins with a passkey."""
    signs = exists().where(passkeys.c.person_id == people.c.person_id)
    return (
        connection.scalar(select(func.count()).select_from(people).where(people.c.org == org, *_CAN_APPROVE, signs))
        or 0
    )


def last_passkey_use(connection: Connection, person_id: str) -> int | None:
    """Return the Unix millisecond of a person's last use or registration of a passkey, or None without a passkey."""
    last = func.max(func.coalesce(passkeys.c.last_used_at, passkeys.c.created_at))
    used: int | None = connection.scalar(select(last).where(passkeys.c.person_id == person_id))
    return used


def author_of(connection: Connection, requester: Actor, *, agents: bool) -> Actor:
    """Return the author of a request: the person who created the requesting key, or the requester itself.

    If ``agents`` is False and an agent's key made the request, that key itself is the author.
    """
    while requester.type == "key" and (key := api_key_by_id(connection, requester.id)) is not None:
        if key.created_by is None or (key.role == "agent" and not agents):
            break
        requester = key.created_by
    return requester
