"""The people's consent that a policy's `approvals` requires, for expenses and for changes that weaken the rule."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.actors import Actor
from app.core.errors import AuthenticationError, BusinessError, RequestError
from app.core.money import parse_usdc
from app.core.timestamps import DAY, now_ms
from app.policies.terms import Terms
from app.store.approval_decisions import (
    ApprovalDecision,
    approvals_given,
    author_of,
    count_approvers,
    last_passkey_use,
    put_approval,
)
from app.store.audit import append
from app.store.keys import api_key_by_id
from app.store.people import STEP_UP
from app.store.policies import PolicyRecord
from app.submission.context import Service

Rule = Mapping[str, Any]
_NO_PERSON = (
    "The policy requires approvals by people, each with a passkey. An API key is not a person. Use the dashboard."
)
_NO_PASSKEY = "An approval requires a passkey, and you have none. Register one in the dashboard."
_UNKNOWN_AUTHOR = (
    "The expense was requested with an API key that no person created, so its author is unknown. Request it again with "
    "an agent's key, or with a key created in the dashboard."
)
_OWN = "You requested this expense, or created the key that did. Another person must approve it."


def required_for(rule: Rule | None, amount: int) -> int:
    """Return the number of people who must approve an expense of ``amount`` micro-USDC, or 0."""
    return 0 if rule is None or amount <= _above(rule) else int(rule["required"])


def in_force(policy: PolicyRecord) -> Rule | None:
    """Return the policy's rule about approvals. During a change, combines the old and the new rule."""
    rules = [one for one in (policy.approvals, (policy.approvals_next or {}).get("rule")) if one is not None]
    if not rules:
        return None
    return {"required": max(one["required"] for one in rules), "above": min(rules, key=_above)["above"]}


def with_co_signature(terms: Terms, rule: Rule | None, given: Collection[str]) -> Terms:
    """Return the terms with a `requireCoSign` that makes the program refuse an expense without an approval.

    Raises ``invalid_request`` if the request itself sets a higher `requireCoSign`.
    """
    limit = terms.rules.require_co_sign
    if rule is None or (limit is not None and limit <= _above(rule)):
        return terms
    if "require_co_sign" in given:
        raise RequestError("invalid_request", "requireCoSign: must be at most approvals.above.")
    return replace(terms, rules=replace(terms.rules, require_co_sign=_above(rule)))


def weakens(before: Rule | None, after: Rule | None) -> bool:
    """Return True if the rule ``after`` requires fewer people than the rule ``before``, or covers fewer expenses."""
    if before is None or after is None:
        return before is not None
    return after["required"] < before["required"] or _above(after) > _above(before)


def votes_to_weaken(before: Rule) -> int:
    """Return the number of people needed to weaken the rule ``before``."""
    return max(int(before["required"]), 2)


async def require_people(service: Service, org: str, rule: Rule | None) -> None:
    """Raise ``invalid_request`` if a rule requires more people than the organisation has."""
    there = await service.db.read(lambda conn: count_approvers(conn, org))
    if rule is not None and rule["required"] > there:
        message = f"must be at most {there}, the number of operators and admins with a passkey. Invite more people."
        raise RequestError("invalid_request", f"approvals.required: {message}")


async def require_consent(service: Service, principal: Principal, about: str, before: Rule, *change: object) -> None:
    """Record that the person who makes a change consents to it.

    Raises ``approvals_missing`` until enough people (see ``votes_to_weaken``) have made the same change within a day.
    Raises the errors of ``approve``.
    """
    needed, since = votes_to_weaken(before), now_ms() - DAY
    content = json.dumps([principal.org, about, before, *change], sort_keys=True)
    subject = f"change:{hashlib.sha256(content.encode()).hexdigest()}"
    given = await approve(service, principal, subject, about, since=since)
    if given < needed:
        raise BusinessError(
            "approvals_missing",
            f"The change weakens the policy's approvals. {given} of {needed} people have made it. Others must make the "
            "same change in the dashboard within a day. If fewer people remain, attach another policy with "
            "`?sign=offline`.",
        )


async def approve(
    service: Service,
    principal: Principal,
    subject: str,
    about: str,
    *,
    since: int = 0,
    requester: Actor | None = None,
    agents: bool = False,
) -> int:
    """Record a person's approval, confirmed by a passkey. Return the number of valid approvals given after ``since``.

    Raises ``insufficient_permissions`` for API keys, for people without a passkey, and for the person behind
    ``requester`` (see ``author_of``). Raises ``step_up_required`` if the passkey was not used recently.
    """
    me, now = principal.actor, now_ms()
    if me.type != "person":
        raise AuthenticationError("insufficient_permissions", _NO_PERSON)

    def write(conn: Connection) -> int:
        used = last_passkey_use(conn, me.id)
        if used is None:
            raise AuthenticationError("insufficient_permissions", _NO_PASSKEY)
        if used <= now - STEP_UP:
            raise AuthenticationError("step_up_required")
        if requester is not None:
            author = author_of(conn, requester, agents=agents)
            key = api_key_by_id(conn, requester.id)
            if author == me:
                raise AuthenticationError("insufficient_permissions", _OWN)
            if author.type != "person" and (key is None or key.role != "agent"):
                raise AuthenticationError("insufficient_permissions", _UNKNOWN_AUTHOR)
        put_approval(conn, ApprovalDecision(subject, me.id, now))
        given = len(approvals_given(conn, [subject], since))
        append(conn, principal.entry("approval.approve", about, approvals=given))
        return given

    return await service.db.write(write)


def _above(rule: Rule) -> int:
    return parse_usdc(rule["above"], allow_zero=True)
