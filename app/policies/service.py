"""Creates and clones policies on the chain, and shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import ApiError, AuthenticationError, NotFoundError, RequestError
from app.core.identifiers import new_key, policy_id, policy_key
from app.policies import consent
from app.policies.allowlists import Step, draft, is_written, steps, store_texts
from app.policies.models import ClonePolicy, CreatePolicy, Policy, PolicyList
from app.policies.terms import NO_TERMS, Terms, apply_changes, require_owners, terms_of, with_recipients
from app.projection.differences import shown as shown_rules
from app.store.attempts import Attempt
from app.store.audit import NewLogEntry
from app.store.policies import DETAILS, PolicyDetails, PolicyRecord, policies, policy, put_policy_details
from app.store.wallets import policy_id_of
from app.submission.chain_state import authority_sequence, pending_or_missing, stale_node_error
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.offline import authority_of
from app.submission.plan import Authority, Hook, Plan, PlanType

_CREATE = PlanType("create_policy")
PLAN_TYPES = (_CREATE,)
_LIST_APART = "allowedRecipients: a policy signed elsewhere must be created without a list. Add the list later."


async def find(service: Service, org: str, identifier: str) -> PolicyRecord:
    """Return a policy of the organisation, or a preset. Raises ``policy_not_found``."""
    found = await service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None or found.closed or not _is_complete(found):
        raise await missing(service, org, identifier)
    return found


async def missing(service: Service, org: str, identifier: str) -> ApiError:
    """Return the error for a policy that the read models lack. Its creation may be pending."""
    unknown = NotFoundError("policy_not_found")
    return await pending_or_missing(
        service, org, _CREATE.name, lambda attempt: attempt.policy_id == identifier, unknown
    )


async def get(service: Service, principal: Principal, identifier: str) -> Policy:
    """Return a policy as clients see it. An agent sees only the policy of its own wallet.

    Raises ``policy_not_found``, and ``insufficient_permissions`` for an agent whose wallet has another policy.
    """
    own = principal.wallet_id
    if own is not None:
        attached = await service.db.read(lambda conn: policy_id_of(conn, principal.org, own))
        if attached != identifier:
            raise AuthenticationError("insufficient_permissions", "The key is bound to a wallet with another policy.")
    return shown(await with_recipients(service, await find(service, principal.org, identifier)))


async def list_all(service: Service, principal: Principal) -> PolicyList:
    """Return all policies of the organisation, presets first."""
    found = await by_id(service, principal)
    return PolicyList(data=[shown(await with_recipients(service, one)) for one in found.values()])


async def by_id(service: Service, principal: Principal) -> dict[str, PolicyRecord]:
    """Return all policies of the organisation by id, presets first, without looking up their recipients."""
    found = await service.db.read(lambda conn: policies(conn, principal.org))
    return {one.policy_id: one for one in found if _is_complete(one)}


def _is_complete(found: PolicyRecord) -> bool:
    # A restricted policy without an allowlist is still being created. It refuses every recipient.
    return not found.rules.restricted or found.allowlist is not None


async def create(
    service: Service, principal: Principal, claim: Claim, body: CreatePolicy | ClonePolicy, source: str | None = None
) -> Policy:
    """Create a policy from the terms of ``source``, if given, changed by the fields in the body.

    An allowlist takes at least one more transaction, a long allowlist several. Until it is in force, the policy refuses
    every recipient and is not shown. A repeated request continues after the last step that landed.
    """
    org = principal.org
    identifier = (claim.attempt.policy_id if claim.attempt else None) or policy_id(new_key())
    begun = claim.attempt is not None
    if await earlier_outcome(service, claim) is not None:
        made = await service.db.read(lambda conn: policy(conn, org, identifier))
        if made is not None and _is_complete(made):
            return shown(await with_recipients(service, made))
    cloned = None if source is None else await find(service, org, source)
    authority = await authority_of(service, org, claim)
    before = NO_TERMS if cloned is None else await terms_of(service, cloned)
    terms = await apply_changes(service, org, before, body)
    rule = body.approvals if cloned is None or "approvals" in body.model_fields_set else cloned.approvals
    terms = consent.with_co_signature(terms, rule, body.model_fields_set)
    if not begun:
        await consent.require_people(service, org, rule)
        await require_owners(service, before, terms, body)
    address = service.addresses.policy(Pubkey.from_string(org), policy_key(identifier))

    if authority.key is None and terms.entries:
        raise RequestError("invalid_request", _LIST_APART)
    sources = {name: body if cloned is None or name in body.model_fields_set else cloned for name in DETAILS}
    details = {name: getattr(one, name) for name, one in sources.items()}
    new = PolicyDetails(
        policy_id=identifier, org=org, address=str(address), created_at=await service.clock.moment_ms(), **details
    )
    # The first transaction records the requesting principal, so an incomplete creation is in the audit log too.
    entry: NewLogEntry | None = principal.entry("policy.create", identifier)
    if source is not None:
        entry = principal.entry("policy.clone", identifier, source=source)
    if begun:
        entry = None
    # The list comes after the policy, because only the policy's account states the version of its next list.
    while remaining := await _remaining(service, org, identifier, terms, authority):
        for step in remaining.steps:
            plan = Plan(
                org=org,
                type=_CREATE,
                instructions=step.instructions,
                signers=[] if step.by_authority else [service.signers.operator],
                authority=authority if step.by_authority else None,
                policy_id=identifier,
                entry=entry,
                on_store=_storing(remaining, new, terms),
            )
            await carry_out(service, plan, claim)
            entry = None
    return shown(await find(service, org, identifier))


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The transactions that a policy's creation still needs, and the address of the allowlist that they write."""

    steps: Sequence[Step]
    allowlist: Pubkey | None


def _storing(remaining: _Remaining, new: PolicyDetails, terms: Terms) -> Hook:
    """Return the hook that stores the details and the list's texts with each transaction of a creation."""

    def store(conn: Connection, _attempt: Attempt) -> None:
        put_policy_details(conn, new)
        if remaining.allowlist is not None:
            store_texts(conn, remaining.allowlist, new.policy_id, terms.entries)

    return store


async def _remaining(
    service: Service, org: str, identifier: str, terms: Terms, authority: Authority
) -> _Remaining | None:
    """Return the transactions that the creation still needs in this on-chain state, or None if it is complete."""
    build, address = (
        service.instructions(org),
        service.addresses.policy(Pubkey.from_string(org), policy_key(identifier)),
    )
    account = await service.chain.account(address)
    if account is None:
        if await service.db.read(lambda conn: policy(conn, org, identifier)) is not None:
            raise stale_node_error()
        create = build.create_policy(
            payer=service.signers.fee_payer_address,
            authority=authority.address,
            key=policy_key(identifier),
            rules=terms.rules,
            expected_sequence=await authority_sequence(service, org),
        )
        return _Remaining([Step([create])], None)
    found = account.decode(service.codec).data
    if not terms.entries or found["allowlist"] != Pubkey.default():
        return None
    version: int = found["next_allowlist_version"]
    allowlist, entries = service.addresses.allowlist(address, version), list(terms.entries)
    switch = build.update_policy(
        authority=authority.address,
        policy=address,
        expected_version=found["version"],
        rules=terms.rules,
        new_allowlist=allowlist,
        entries=entries,
    )
    if is_written(await draft(service, allowlist), terms.entries):
        return _Remaining([Step([switch])], allowlist)
    return _Remaining(steps(service, build, authority, address, version, entries, switch), allowlist)


def shown(found: PolicyRecord) -> Policy:
    """Return a policy as clients see it."""
    return Policy.of(found, **shown_rules(found.rules, found.allowed_recipients))
