"""Changes an organisation's roles and withdraws from its reserve. The current or the proposed authority signs.

There are no endpoints for these changes: they would give an admin's API key the authority's power over the reserve.
"""

from dataclasses import dataclass
from typing import Any

from solders.pubkey import Pubkey

from app.access.keyring import system
from app.core.errors import UnavailableError
from app.core.identifiers import new_reference
from app.core.money import format_usdc
from app.core.paths import ConfigurationError
from app.store.organisations import Organisation, organisations
from app.submission.chain_state import authority_sequence, unverified_recipients
from app.submission.changes import carry_out
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Authority, Plan, PlanType

_CHANGES = frozenset({"update_org", "accept_authority"})
_UPDATE = PlanType("update_org", resent=False, waits_for=_CHANGES)
_ACCEPT = PlanType("accept_authority", resent=False, waits_for=_CHANGES)
_WITHDRAW = PlanType("withdraw_reserve")
#: Plan type of transactions that earlier versions of the service made. Some of them may still be pending.
_CREATE_TOKENS = PlanType("create_token_account", indexed=False)
TRANSFER = PlanType("transfer_sol", indexed=False)
"""Plan type of transfers of the fee payer's SOL."""
PLAN_TYPES = (_UPDATE, _ACCEPT, _WITHDRAW, _CREATE_TOKENS, TRANSFER)


async def roles_of(service: Service, org: str) -> dict[str, Pubkey]:
    """Return the organisation's on-chain roles. The address of 32 zero bytes means that a role has no holder.

    Raises ``chain_unavailable`` if the node lacks the organisation.
    """
    found = await _account(service, org)
    return {name: found[name] for name in ("authority", "pending_authority", "operator", "arbiter", "verifier")}


@dataclass(frozen=True, slots=True)
class LostRole:
    """A role that the chain gives to the key ``holder``, although this service signs for it with the key ``key``."""

    org: Organisation
    role: str
    holder: Pubkey
    key: Pubkey


async def lost_roles(service: Service) -> list[LostRole]:
    """Return the operator and authority roles, of all organisations, that the chain gives to keys not held here.

    The authority role is checked only if the service has an authority key. The arbiter is not checked, because each
    escrow keeps the arbiter that it named. Raises ChainUnavailable and RpcError.
    """
    signers = service.signers
    held = {"operator": signers.operator_address}
    if signers.authority is not None:
        held["authority"] = signers.authority.pubkey()
    every = await service.db.read(organisations)
    lost = []
    accounts = await service.chain.accounts([Pubkey.from_string(one.org) for one in every])
    for one, account in zip(every, accounts, strict=True):
        if account is not None:
            found = account.decode(service.codec).data
            lost += [LostRole(one, role, found[role], key) for role, key in held.items() if found[role] != key]
    return lost


async def change_roles(service: Service, org: str, authority: Authority, **changes: Pubkey) -> None:
    """Set the roles in ``changes``. `pending_authority` proposes the next authority.

    Like the other changes of this module, raises AwaitingSignatureError if ``authority`` signs offline.
    """
    sequence = await authority_sequence(service, org)
    change = service.instructions(org).update_org(signer=authority.address, expected_sequence=sequence, **changes)
    details = {name: str(address) for name, address in changes.items()}
    entry = system(org, "command_line").entry("organization.roles", org, **details)
    plan = Plan(org=org, type=_UPDATE, instructions=[change], authority=authority, entry=entry)
    await _carry_out(service, plan)


async def accept_authority(service: Service, org: str, proposed: Authority) -> None:
    """Make the proposed authority the authority. The proposed authority signs this change."""
    change = service.instructions(org).accept_authority(
        new_authority=proposed.address, expected_sequence=await authority_sequence(service, org)
    )
    entry = system(org, "command_line").entry("organization.roles", org, authority=str(proposed.address))
    plan = Plan(org=org, type=_ACCEPT, instructions=[change], authority=proposed, entry=entry)
    await _carry_out(service, plan)


async def withdraw_reserve(service: Service, org: str, authority: Authority, amount: int | None, owner: Pubkey) -> None:
    """Move micro-USDC from the reserve to the token account of ``owner``. An ``amount`` of None moves everything.

    Raises ConfigurationError if ``owner`` is a token account or an unverified recipient.
    """
    tokens = service.addresses.token_account(owner)
    found = await service.chain.account(owner)
    if found is not None and found.owner == service.addresses.token_program:
        raise ConfigurationError(f"{owner} is a token account; use the address of its owner")
    if warning := (await unverified_recipients(service, [owner])).get(owner):
        raise ConfigurationError(f"{warning} If the address is right, send it some SOL first.")
    build, reference = service.instructions(org), new_reference()
    # This instruction proves the owner to the signer. It fails if the account has passed to another owner.
    opening = build.create_token_account(payer=service.signers.fee_payer_address, owner=owner)
    withdrawal = build.withdraw_reserve(
        authority=authority.address,
        destination=tokens,
        amount=amount,
        reference=reference,
        expected_sequence=await authority_sequence(service, org),
    )
    moved = "all" if amount is None else format_usdc(amount)
    plan = Plan(
        org=org,
        type=_WITHDRAW,
        instructions=[opening, withdrawal],
        authority=authority,
        event_instruction=1,
        entry=system(org, "command_line").entry("organization.withdraw", org, amount=moved, to=str(owner)),
        reference=reference,
    )
    await _carry_out(service, plan)


async def _account(service: Service, org: str) -> dict[str, Any]:
    account = await service.chain.account(org)
    if account is None:
        raise UnavailableError("chain_unavailable", "The organisation is not on the chain yet. Retry later.")
    return account.decode(service.codec).data


async def _carry_out(service: Service, plan: Plan) -> None:
    async with service.locks.hold(LockScope.ORG_STATE, plan.org):
        await require_no_pending_change(service, plan.org, plan.type.waits_for)
        await carry_out(service, plan, Claim(service.db))
