"""Policies: creating them on the chain, and showing them."""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.rules import CATEGORIES, Rules, category_bits, category_names
from app.chain.transactions import MAX_SIZE, unsigned
from app.errors import NotFoundError, RequestError
from app.idempotency import Ticket
from app.identifiers import new_policy_key, policy_id, policy_key
from app.keys import Principal
from app.models.policies import CreatePolicy, PolicyList
from app.models.policies import Policy as PolicyAnswer
from app.money import format_usdc
from app.plans import Plan, RefusedError, distinct
from app.recipients import allowlist_entry
from app.refusals import business_error, require_confirmed
from app.service import Service
from app.store.policies import Policy, insert_policy_details, policies, policy, put_allowlist
from app.store.recipients import put_domain
from app.timestamps import iso, iso_ms, now_ms

#: Entries of an allowlist that one transaction carries beside the signatures of fee payer and authority.
_CHUNK = 22
_SIGNATURE = 64


@dataclass(frozen=True, slots=True)
class _Draft:
    """A policy on its way to the chain; ``entries`` are the allowlist's, shown form by chain form, ascending."""

    org: str
    policy_id: str
    name: str
    rules: Rules
    entries: dict[bytes, str]

    @property
    def key(self) -> bytes:
        return policy_key(self.policy_id)


def find(service: Service, org: str, identifier: str) -> Policy:
    """Return a policy of the organisation, presets included. Raises ``policy_not_found``."""
    found = service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None or found.closed or not _complete(found):
        raise NotFoundError("policy_not_found")
    return found


def get(service: Service, principal: Principal, identifier: str) -> PolicyAnswer:
    """Return a policy as it is shown."""
    return shown(find(service, principal.org, identifier))


def all_of(service: Service, principal: Principal) -> PolicyList:
    """All policies of the organisation, presets first."""
    found = service.db.read(lambda conn: policies(conn, principal.org))
    return PolicyList(data=[shown(one) for one in found if _complete(one)])


def _complete(found: Policy) -> bool:
    # A restricted policy without its allowlist is one whose creation stopped half-way; it refuses every recipient.
    return not found.rules.restricted or found.allowlist is not None


async def create(service: Service, principal: Principal, ticket: Ticket, body: CreatePolicy) -> PolicyAnswer:
    """Create a policy; it is shown once all of it, its allowlist included, is on the chain.

    What fits goes into one transaction. A longer allowlist is written in several while the policy refuses every
    recipient, and takes effect when it is complete. A repetition of a lost request goes on where that one stopped.
    """
    service.signers.require_authority()
    draft = _draft(service, principal.org, ticket, body)
    await _finish_earlier(service, ticket)
    try:
        for instructions in await _steps(service, draft):
            await _step(service, ticket, draft, instructions)
    except RefusedError as refused:
        raise business_error(service.codec, refused) from None
    return shown(find(service, principal.org, draft.policy_id))


def _draft(service: Service, org: str, ticket: Ticket, body: CreatePolicy) -> _Draft:
    unknown = [name for name in body.blocked_categories if name not in CATEGORIES]
    if unknown:
        raise RequestError("invalid_request", f"blockedCategories: takes {', '.join(CATEGORIES)}.")
    entries = dict(
        sorted((raw, text) for text, raw in (allowlist_entry(service, org, one) for one in body.allowed_recipients))
    )
    resumed = ticket.resumed.policy_id if ticket.resumed else None
    return _Draft(
        org=org,
        policy_id=resumed or policy_id(new_policy_key()),
        name=body.name,
        rules=Rules(
            max_per_tx=body.max_per_tx,
            max_per_day=body.max_per_day,
            max_per_month=body.max_per_month,
            velocity_cap=body.velocity_cap,
            require_co_sign=body.require_co_sign,
            expiry=body.expiry,
            blocked_categories=category_bits(body.blocked_categories),
            restricted=bool(entries),
        ),
        entries=entries,
    )


async def _finish_earlier(service: Service, ticket: Ticket) -> None:
    outcome = await service.submitter.resume(ticket)
    if outcome is not None:
        require_confirmed(service.codec, outcome)


async def _steps(service: Service, draft: _Draft) -> list[list[Instruction]]:
    """Return the transactions that are left to do, as the chain stands now."""
    payer, authority = service.signers.fee_payer_address, service.signers.require_authority().pubkey()
    build = service.instructions(draft.org)
    address = service.addresses.policy(Pubkey.from_string(draft.org), draft.key)
    account = await service.chain.account(address)
    stands = service.codec.decode_account(account.data).data if account else None
    creation = (
        [] if stands else [build.create_policy(payer=payer, authority=authority, key=draft.key, rules=draft.rules)]
    )
    if not draft.entries or (stands and stands["allowlist"] != Pubkey.default()):
        return [creation] if creation else []
    version = (stands["allowlist_version"] if stands else 0) + 1
    raw = list(draft.entries)
    writes = [
        build.write_allowlist(
            payer=payer,
            authority=authority,
            policy=address,
            version=version,
            offset=offset,
            entries=raw[offset : offset + _CHUNK],
            seal=offset + _CHUNK >= len(raw),
        )
        for offset in range(0, len(raw), _CHUNK)
    ]
    switch = build.update_policy(
        authority=authority,
        policy=address,
        expected_version=stands["version"] if stands else _FIRST_VERSION,
        rules=draft.rules,
        new_allowlist=service.addresses.allowlist(address, version),
    )
    whole = [*creation, *writes, switch]
    if _fits(whole, payer, signatures=2):
        return [whole]
    return [*([creation] if creation else []), *([write] for write in writes), [switch]]


#: The version with which the program creates a policy.
_FIRST_VERSION = 1


def _fits(instructions: Sequence[Instruction], payer: Pubkey, *, signatures: int) -> bool:
    if len(instructions) > 3:
        return False
    blank = unsigned(distinct(instructions), payer=payer)
    message = blank[1 + _SIGNATURE * blank[0] :]
    return 1 + _SIGNATURE * signatures + len(message) <= MAX_SIZE


async def _step(service: Service, ticket: Ticket, draft: _Draft, instructions: Sequence[Instruction]) -> None:
    def remember(conn: Connection) -> None:
        address = service.addresses.policy(Pubkey.from_string(draft.org), draft.key)
        insert_policy_details(conn, draft.policy_id, draft.org, str(address), draft.name, now_ms())
        if draft.entries:
            first = str(service.addresses.allowlist(address, 1))
            put_allowlist(conn, first, str(address), list(draft.entries.values()))
            for text in draft.entries.values():
                if "." in text:
                    put_domain(conn, text)

    plan = Plan(
        org=draft.org,
        type="create_policy",
        instructions=instructions,
        signers=[service.signers.require_authority()],
        policy_id=draft.policy_id,
        also=remember,
    )
    require_confirmed(service.codec, await service.submitter.submit(plan, ticket))


def money(micro: int | None) -> str | None:
    """Return a limit as it is shown."""
    return None if micro is None else format_usdc(micro)


def shown(found: Policy) -> PolicyAnswer:
    """Return a policy as it is shown."""
    rules = found.rules
    return PolicyAnswer(
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
        created_at=iso_ms(found.created_at),
    )
