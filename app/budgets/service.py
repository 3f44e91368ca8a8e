"""Budgets: creates them on the chain, and shows them with their wallets' consumption."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import optional
from app.budgets.models import Budget, BudgetHeadroom, BudgetList, CreateBudget, LimitFields
from app.chain.consumption import Consumption
from app.chain.records import RawAccount
from app.chain.rules import BudgetLimits
from app.core.errors import ApiError, BusinessError, NotFoundError
from app.core.identifiers import budget_id, budget_key, new_key
from app.store.attempts import Attempt
from app.store.budgets import BudgetDetails, BudgetRecord, budget, budgets, put_budget_details
from app.submission.chain_state import authority_sequence, pending_or_missing
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.offline import authority_of
from app.submission.plan import Plan, PlanType

_CREATE = PlanType("create_budget")
PLAN_TYPES = (_CREATE,)
LIMITS = tuple(field.name for field in fields(BudgetLimits))
"""Fields of a body that are limits."""
_State = tuple[BudgetLimits, Consumption]
"""The limits and the spending of a budget on the chain."""
_UNLIMITED = (
    "could each use up this budget alone, because their policies lack `maxPerDay` or `velocityCap`. "
    "Refunds do not lower the number of payments."
)


async def find(service: Service, org: str, identifier: str) -> BudgetRecord:
    """Return a budget of the organisation. Raises ``budget_not_found``."""
    found = await service.db.read(lambda conn: budget(conn, org, identifier))
    if found is None or found.closed:
        raise await _missing(service, org, identifier)
    return found


async def _missing(service: Service, org: str, identifier: str) -> ApiError:
    """Return the error for a budget that is not in the read models. Its creation may be pending."""
    unknown = NotFoundError("budget_not_found")
    return await pending_or_missing(
        service, org, _CREATE.name, lambda attempt: attempt.recipient == identifier, unknown
    )


async def get(service: Service, principal: Principal, identifier: str) -> Budget:
    """Return a budget as clients see it. Raises ``budget_not_found``."""
    [shown] = await _with_consumption(service, [await find(service, principal.org, identifier)])
    return shown


async def list_all(service: Service, principal: Principal) -> BudgetList:
    """Return all budgets of the organisation, oldest first."""
    found = await service.db.read(lambda conn: budgets(conn, principal.org))
    return BudgetList(data=await _with_consumption(service, found))


async def names(service: Service, principal: Principal) -> list[tuple[str, str]]:
    """Return the ids and names of all budgets of the organisation, oldest first."""
    found = await service.db.read(lambda conn: budgets(conn, principal.org))
    return [(one.budget_id, one.name) for one in found]


async def create(service: Service, principal: Principal, claim: Claim, body: CreateBudget) -> Budget:
    """Create a budget, which contains no wallet at first.

    Raises ``budget_not_found`` for an unknown parent, and ``budget_nested`` for one that is part of another budget.
    """
    org = principal.org
    identifier = (claim.attempt.recipient if claim.attempt else None) or budget_id(new_key())
    if await earlier_outcome(service, claim) is not None:
        return await get(service, principal, identifier)
    parent = None if body.parent_id is None else await find(service, org, body.parent_id)
    if parent is not None and parent.parent is not None:
        raise BusinessError("budget_nested")
    authority = await authority_of(service, org, claim)
    address = service.addresses.budget(Pubkey.from_string(org), budget_key(identifier))
    creation = service.instructions(org).create_budget(
        payer=service.signers.fee_payer_address,
        authority=authority.address,
        key=budget_key(identifier),
        limits=with_changes(BudgetLimits(), body),
        parent=optional(Pubkey.from_string, None if parent is None else parent.address),
        parent_version=None if parent is None else parent.version,
        expected_sequence=await authority_sequence(service, org),
    )
    new = BudgetDetails(
        budget_id=identifier, org=org, address=str(address), name=body.name, created_at=await service.clock.moment_ms()
    )

    def store(conn: Connection, _attempt: Attempt) -> None:
        put_budget_details(conn, new)

    plan = Plan(
        org=org,
        type=_CREATE,
        instructions=[creation],
        authority=authority,
        recipient=identifier,
        entry=principal.entry("budget.create", identifier),
        on_store=store,
    )
    await carry_out(service, plan, claim)
    return await get(service, principal, identifier)


def target(found: BudgetRecord) -> dict[str, Any]:
    """Return the arguments of `set_wallet_budget` that attach a budget."""
    return {
        "new_budget": Pubkey.from_string(found.address),
        "budget_version": found.version,
        "new_parent": optional(Pubkey.from_string, found.parent),
        "parent_version": found.parent_version,
    }


def with_changes(before: BudgetLimits, body: LimitFields) -> BudgetLimits:
    """Return the limits after applying those in the body."""
    given = {name: getattr(body, name) for name in LIMITS if name in body.model_fields_set}
    return BudgetLimits(**(before.to_args() | given))


async def _with_consumption(service: Service, found: Sequence[BudgetRecord]) -> list[Budget]:
    levels = dict.fromkeys(address for one in found for address in (one.address, one.parent) if address is not None)
    accounts = await service.chain.accounts([Pubkey.from_string(address) for address in levels])
    states = {address: _state(service, account) for address, account in zip(levels, accounts, strict=True)}
    return [shown(one, states[one.address], states.get(one.parent or "")) for one in found]


def _state(service: Service, account: RawAccount | None) -> _State | None:
    # The budget's account may have been closed since the read models were read.
    if account is None or not account.data:
        return None
    data = account.decode(service.codec).data
    return BudgetLimits.from_account(data), Consumption.at(data["ledger"], service.clock.now(), data["total_spent"])


def shown(found: BudgetRecord, state: _State | None = None, parent: _State | None = None) -> Budget:
    """Return a budget as clients see it. Without its ``state`` on the chain, it has neither consumption nor headroom.

    ``parent`` is the state of its parent.
    """
    return Budget.of(
        found,
        status="frozen" if found.frozen else "active",
        consumption=None if state is None else state[1],
        headroom=None if state is None else _headroom(found.limits, state[1]),
        parent_headroom=None if state is None or parent is None else _headroom(*parent),
        warnings=[f"{found.unlimited} of its wallets {_UNLIMITED}"] if found.unlimited else [],
    )


def _headroom(limits: BudgetLimits, spent: Consumption) -> BudgetHeadroom:
    def left(limit: int | None, counted: int) -> int | None:
        return None if limit is None else max(0, limit - counted)

    return BudgetHeadroom.model_validate(
        {
            "day": left(limits.max_per_day, spent.day + spent.held),
            "month": left(limits.max_per_month, spent.month + spent.held),
            "total": left(limits.max_total, spent.total + spent.held),
            "payments_in_hour": left(limits.velocity_cap, spent.hour),
        }
    )
