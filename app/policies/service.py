"""Policies: creates and clones them on the chain, and shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import ApiError, AuthenticationError, NotFoundError
from app.core.identifiers import new_policy_key, policy_id, policy_key
from app.core.money import format_usdc
from app.core.timestamps import iso_ms
from app.policies.allowlists import split, store_texts, writes
from app.policies.models import ClonePolicy, CreatePolicy, Policy, PolicyList
from app.policies.terms import NO_TERMS, Terms, apply_changes, terms_of, with_recipients
from app.projection.differences import shown as shown_rules
from app.store.attempts import Attempt
from app.store.policies import PolicyRecord, insert_policy_details, policies, policy
from app.store.wallets import policy_id_of
from app.submission.absence import absent
from app.submission.changes import carry_out, resumed
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.offline import authority_of, require_one
from app.submission.plan import Plan, PlanType

_CREATE = PlanType("create_policy")
PLAN_TYPES = (_CREATE,)
#: What the program sets on creation.
_NEW_ACCOUNT: Mapping[str, Any] = {"version": 1, "allowlist": Pubkey.default(), "allowlist_version": 0}


async def find(service: Service, org: str, identifier: str) -> PolicyRecord:
    """Return a policy of the organisation, or a preset. Raises ``policy_not_found``."""
    found = await service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None or found.closed or not _is_complete(found):
        raise await missing(service, org, identifier)
    return found


async def missing(service: Service, org: str, identifier: str) -> ApiError:
    """Return the error for a policy that the read models lack, which may be pending."""
    unknown = NotFoundError("policy_not_found")
    return await absent(service, org, _CREATE.name, lambda attempt: attempt.policy_id == identifier, unknown)


async def get(service: Service, principal: Principal, identifier: str) -> Policy:
    """Return a policy as clients see it; an agent sees only its own wallet's.

    Raises ``policy_not_found`` and ``insufficient_permissions``.
    """
    own = principal.wallet_id
    if own is not None:
        attached = await service.db.read(lambda conn: policy_id_of(conn, principal.org, own))
        if attached != identifier:
            raise AuthenticationError("insufficient_permissions", "The key is bound to a wallet with another policy.")
    return shown(await with_recipients(service, await find(service, principal.org, identifier)))


async def list_all(service: Service, principal: Principal) -> PolicyList:
    """Return all policies of the organisation, presets first."""
    found = await service.db.read(lambda conn: policies(conn, principal.org))
    return PolicyList(data=[shown(await with_recipients(service, one)) for one in found if _is_complete(one)])


def _is_complete(found: PolicyRecord) -> bool:
    # The creation of a restricted policy without an allowlist has not finished; it refuses every recipient.
    return not found.rules.restricted or found.allowlist is not None


async def create(
    service: Service, principal: Principal, claim: Claim, body: CreatePolicy | ClonePolicy, source: str | None = None
) -> Policy:
    """Create a policy from the terms of ``source``, if given, changed by the fields in the body.

    A long allowlist takes several transactions. Until it is in force the policy refuses every recipient and is not
    shown. A repeated request continues where the first one stopped.
    """
    org = principal.org
    identifier = (claim.attempt.policy_id if claim.attempt else None) or policy_id(new_policy_key())
    begun = claim.attempt is not None
    if await resumed(service, claim) is not None:
        made = await service.db.read(lambda conn: policy(conn, org, identifier))
        if made is not None and _is_complete(made):
            return shown(await with_recipients(service, made))
    cloned = None if source is None else await find(service, org, source)
    authority = await authority_of(service, org, claim)
    before = NO_TERMS if cloned is None else await terms_of(service, cloned)
    terms = await apply_changes(service, org, before, body)
    address = service.addresses.policy(Pubkey.from_string(org), policy_key(identifier))

    now = await service.clock.moment_ms()

    def store_details(conn: Connection, _attempt: Attempt) -> None:
        insert_policy_details(conn, identifier, org, str(address), body.name, now)
        if terms.entries:
            store_texts(conn, service.addresses.allowlist(address, 1), identifier, terms.entries)

    transactions = await _remaining(service, org, identifier, terms, authority.address)
    require_one(authority, transactions)
    # Whatever of it lands, the first transaction has recorded who asked.
    entry = principal.entry("policy.create", identifier)
    if source is not None:
        entry = principal.entry("policy.clone", identifier, source=source)
    for number, instructions in enumerate(transactions):
        plan = Plan(
            org=org,
            type=_CREATE,
            instructions=instructions,
            signers=[],
            authority=authority,
            policy_id=identifier,
            entry=None if number or begun else entry,
            on_store=store_details,
        )
        await carry_out(service, plan, claim)
    return shown(await find(service, org, identifier))


async def _remaining(
    service: Service, org: str, identifier: str, terms: Terms, authority: Pubkey
) -> list[Sequence[Instruction]]:
    """Return the transactions that are left to do, given what is already on the chain."""
    payer = service.signers.fee_payer_address
    address = service.addresses.policy(Pubkey.from_string(org), policy_key(identifier))
    build = service.instructions(org)
    account = await service.chain.account(address)
    found = account.decode(service.codec).data if account else _NEW_ACCOUNT
    left: list[Instruction] = []
    if account is None:
        key = policy_key(identifier)
        left.append(build.create_policy(payer=payer, authority=authority, key=key, rules=terms.rules))
    if terms.entries and found["allowlist"] == Pubkey.default():
        version = found["allowlist_version"] + 1
        left += writes(build, address, version, list(terms.entries), payer=payer, authority=authority)
        left.append(
            build.update_policy(
                authority=authority,
                policy=address,
                expected_version=found["version"],
                rules=terms.rules,
                new_allowlist=service.addresses.allowlist(address, version),
            )
        )
    return split(left, payer)


def money(micro: int | None) -> str | None:
    """Return a limit as clients see it."""
    return None if micro is None else format_usdc(micro)


def shown(found: PolicyRecord) -> Policy:
    """Return a policy as clients see it."""
    return Policy(
        policy_id=found.policy_id,
        id=found.policy_id,
        name=found.name,
        **shown_rules(found.rules, found.allowed_recipients),
        wallet_count=found.wallet_count,
        version=found.version,
        created_at=iso_ms(found.created_at),
    )
