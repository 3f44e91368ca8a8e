"""Policies: creating and cloning them on the chain, and showing them."""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.rules import category_names
from app.core.errors import NotFoundError
from app.core.identifiers import new_policy_key, policy_id, policy_key
from app.core.money import format_usdc
from app.core.timestamps import iso, iso_ms, now_ms
from app.policies import allowlists as policy_lists
from app.policies.models import ClonePolicy, CreatePolicy, Policy, PolicyList
from app.policies.terms import NO_TERMS, Terms, changed, named, terms_of
from app.store.attempts import Attempt
from app.store.policies import PolicyRecord, insert_policy_details, policies, policy
from app.submission.changes import carry_out, resumed
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.plan import Plan, PlanType

_CREATE = PlanType("create_policy")
PLAN_TYPES = (_CREATE,)
#: The version with which the program creates a policy.
_FIRST_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Draft:
    """A policy on its way to the chain."""

    org: str
    policy_id: str
    name: str
    terms: Terms

    @property
    def key(self) -> bytes:
        return policy_key(self.policy_id)


async def find(service: Service, org: str, identifier: str) -> PolicyRecord:
    """Return a policy of the organisation, presets included. Raises ``policy_not_found``."""
    found = await service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None or found.closed or not _complete(found):
        raise NotFoundError("policy_not_found")
    return found


async def get(service: Service, principal: Principal, identifier: str) -> Policy:
    """Return a policy as it is shown."""
    return shown(await named(service, await find(service, principal.org, identifier)))


async def all_of(service: Service, principal: Principal) -> PolicyList:
    """All policies of the organisation, presets first."""
    found = await service.db.read(lambda conn: policies(conn, principal.org))
    return PolicyList(data=[shown(await named(service, one)) for one in found if _complete(one)])


def _complete(found: PolicyRecord) -> bool:
    # A restricted policy without its allowlist is one whose creation stopped half-way; it refuses every recipient.
    return not found.rules.restricted or found.allowlist is not None


async def create(service: Service, principal: Principal, claim: Claim, body: CreatePolicy) -> Policy:
    """Create a policy; it is shown once all of it, its allowlist included, is on the chain.

    What fits goes into one transaction. A longer allowlist is written in several while the policy refuses every
    recipient, and takes effect when it is complete. A repetition of a lost request goes on where that one stopped.
    """
    service.signers.require_authority()
    return await _create(service, principal, claim, body.name, await changed(service, principal.org, NO_TERMS, body))


async def clone(service: Service, principal: Principal, claim: Claim, identifier: str, body: ClonePolicy) -> Policy:
    """Create a policy that says what another one does, its allowlist included, but for the fields in the body."""
    source = await find(service, principal.org, identifier)
    service.signers.require_authority()
    terms = await changed(service, principal.org, await terms_of(service, source), body)
    return await _create(service, principal, claim, body.name, terms)


async def _create(service: Service, principal: Principal, claim: Claim, name: str, terms: Terms) -> Policy:
    earlier = claim.attempt.policy_id if claim.attempt else None
    draft = _Draft(principal.org, earlier or policy_id(new_policy_key()), name, terms)
    await resumed(service, claim)
    for instructions in await _steps(service, draft):
        await _step(service, claim, draft, instructions)
    return shown(await find(service, principal.org, draft.policy_id))


async def _steps(service: Service, draft: _Draft) -> list[list[Instruction]]:
    """Return the transactions that are left to do, as the chain stands now."""
    payer, authority = service.signers.fee_payer_address, service.signers.require_authority().pubkey()
    build = service.instructions(draft.org)
    address = service.addresses.policy(Pubkey.from_string(draft.org), draft.key)
    rules, entries = draft.terms.rules, list(draft.terms.entries)
    account = await service.chain.account(address)
    stands = service.codec.decode_account(account.data).data if account else None
    creation = [] if stands else [build.create_policy(payer=payer, authority=authority, key=draft.key, rules=rules)]
    if not entries or (stands and stands["allowlist"] != Pubkey.default()):
        return [creation] if creation else []
    version = (stands["allowlist_version"] if stands else 0) + 1
    writes = policy_lists.writes(build, address, version, entries, payer=payer, authority=authority)
    switch = build.update_policy(
        authority=authority,
        policy=address,
        expected_version=stands["version"] if stands else _FIRST_VERSION,
        rules=rules,
        new_allowlist=service.addresses.allowlist(address, version),
    )
    whole = [*creation, *writes, switch]
    if policy_lists.fit(whole, payer, signatures=2):
        return [whole]
    return [*([creation] if creation else []), *([write] for write in writes), [switch]]


async def _step(service: Service, claim: Claim, draft: _Draft, instructions: Sequence[Instruction]) -> None:
    def remember(conn: Connection, _attempt: Attempt) -> None:
        address = service.addresses.policy(Pubkey.from_string(draft.org), draft.key)
        insert_policy_details(conn, draft.policy_id, draft.org, str(address), draft.name, now_ms())
        if draft.terms.entries:
            first = service.addresses.allowlist(address, 1)
            policy_lists.remember(conn, first, draft.policy_id, list(draft.terms.entries.values()))

    plan = Plan(
        org=draft.org,
        type=_CREATE,
        instructions=instructions,
        signers=[service.signers.require_authority()],
        policy_id=draft.policy_id,
        on_store=remember,
    )
    await carry_out(service, plan, claim)


def money(micro: int | None) -> str | None:
    """Return a limit as it is shown."""
    return None if micro is None else format_usdc(micro)


def shown(found: PolicyRecord) -> Policy:
    """Return a policy as it is shown."""
    rules = found.rules
    return Policy(
        policy_id=found.policy_id,
        id=found.policy_id,
        name=found.name,
        max_per_tx=money(rules.max_per_tx),
        max_per_day=money(rules.max_per_day),
        max_per_month=money(rules.max_per_month),
        velocity_cap=rules.velocity_cap,
        allowed_recipients=list(found.allowed_recipients),
        blocked_categories=category_names(rules.blocked_categories),
        require_co_sign=money(rules.require_co_sign),
        expiry=None if rules.expiry is None else iso(rules.expiry),
        wallet_count=found.wallet_count,
        version=found.version,
        created_at=iso_ms(found.created_at),
    )
