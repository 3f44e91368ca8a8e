"""Wallets: creation, changes and freezing."""

from contextlib import AsyncExitStack
from dataclasses import replace

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import optional
from app.budgets import service as budgets
from app.core.errors import (
    ApiError,
    BusinessError,
    ConflictError,
    NotFoundError,
    RequestError,
)
from app.core.identifiers import wallet_id as id_of_wallet
from app.core.money import format_sol
from app.core.timestamps import DAY, iso_ms
from app.policies import service as policies
from app.store.attempts import Attempt
from app.store.audit import NewLogEntry, append
from app.store.fee_payer_use import held_rent, limits_of, use_of
from app.store.organisations import organisation
from app.store.wallets import (
    AgentIdTakenError,
    WalletDetails,
    WalletRecord,
    delete_wallet_details,
    has_wallet,
    has_wallet_details,
    insert_wallet_details,
    update_wallet_details,
    wallet,
    wallets,
)
from app.submission.chain_state import pending_or_missing, require_no_gap
from app.submission.changes import carry_out_current, earlier_outcome, submit
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.fee_payer import HELD_PER_WALLET, PER_WALLET_DAY, FeePayer
from app.submission.locks import LockScope
from app.submission.offline import refuse_unneeded_offline
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType, SimulationFailedError
from app.submission.program_errors import business_error, error_name
from app.wallets._changes import attaching_authority, changes
from app.wallets.freezing import CHANGES_OF_STATE, FREEZE, UNFREEZE, braked, freeze
from app.wallets.models import (
    CreateWallet,
    ListWallets,
    UpdateWallet,
    Wallet,
    WalletDetail,
    WalletPage,
    WalletSol,
)


def _forget_details(conn: Connection, attempt: Attempt) -> None:
    assert attempt.wallet_id is not None
    delete_wallet_details(conn, attempt.wallet_id)


_CREATE = PlanType("create_wallet", on_failed=_forget_details)
_UPDATE = PlanType("update_wallet", resent=False, waits_for=CHANGES_OF_STATE)
#: Plan type of updates that attach another policy, or freeze a wallet together with another change. Both end the basis
#: of the wallet's allowances, so the allowances are settled once the update was sent.
_STOP = PlanType("stop_wallet", resent=False, waits_for=CHANGES_OF_STATE, stops=True)
PLAN_TYPES = (_CREATE, _UPDATE, _STOP, FREEZE, UNFREEZE)


async def find(service: Service, org: str, wallet_id: str) -> WalletRecord:
    """Return a wallet of the organisation.

    Raises ``wallet_not_found``, or ``chain_unavailable`` while the wallet's creation is pending.
    """
    found = await service.db.look_up(lambda conn: wallet(conn, org, wallet_id, service.clock.seen_ms()))
    if found is None:
        raise await _missing(service, org, wallet_id)
    return found


async def _missing(service: Service, org: str, wallet_id: str) -> ApiError:
    """Return the error for a wallet that the read models lack. Its creation may be pending."""
    unknown = NotFoundError("wallet_not_found")
    return await pending_or_missing(service, org, _CREATE.name, lambda attempt: attempt.wallet_id == wallet_id, unknown)


async def require(service: Service, org: str, wallet_id: str) -> None:
    """Raise an error unless the organisation has this wallet, even an archived one.

    The error is ``wallet_not_found``, or ``chain_unavailable`` while the wallet's creation is pending.
    """
    if not await service.db.read(lambda conn: has_wallet(conn, org, wallet_id)):
        raise await _missing(service, org, wallet_id)


async def sol(service: Service, org: str, wallet_id: str) -> WalletSol:
    """Return the SOL that a wallet costs, and its limits. Raises ``wallet_not_found``."""
    await require(service, org, wallet_id)
    payer, day = service.part(FeePayer), service.clock.seen_ms() // DAY
    own, (spent, _), (held, _) = await service.db.read(
        lambda conn: (limits_of(conn, org), use_of(conn, wallet_id, day), held_rent(conn, wallet_id))
    )
    return WalletSol(
        **{name: optional(format_sol, payer.limit(name, own)) for name in (PER_WALLET_DAY, HELD_PER_WALLET)},
        wallet_id=wallet_id,
        spent_today=format_sol(spent),
        resets_at=iso_ms((day + 1) * DAY),
        held=format_sol(held),
    )


async def find_living(service: Service, org: str, wallet_id: str) -> WalletRecord:
    """Return an unarchived wallet. Raises ``wallet_not_found`` and ``wallet_archived``."""
    found = await find(service, org, wallet_id)
    if found.archived:
        raise BusinessError("wallet_archived")
    return found


async def page(service: Service, principal: Principal, query: ListWallets) -> WalletPage:
    """Return one page of the organisation's wallets, newest first. An agent sees only its own wallet."""
    tags = tuple(query.tags)
    if principal.wallet_id is not None:
        own = await find(service, principal.org, principal.wallet_id)
        wanted = query.status in (None, own.status) and set(tags) <= set(own.tags)
        return WalletPage(data=[_summary(own)] if wanted else [], has_more=False, next_cursor=None)
    org, now = principal.org, service.clock.seen_ms()
    found = await service.db.read(
        lambda conn: wallets(conn, org, now, status=query.status, tags=tags, limit=query.limit, cursor=query.cursor)
    )
    return WalletPage.showing(found, _summary)


async def create(service: Service, principal: Principal, claim: Claim, body: CreateWallet) -> Wallet:
    """Create an agent's wallet in one transaction.

    Raises ``policy_not_found``, and ``wallet_agent_id_conflict`` if the agent has a wallet, even an archived one.
    """
    org = principal.org
    await _check_owner(service, org, body.owner_org)
    address = service.addresses.vault(Pubkey.from_string(org), body.agent_id)
    if await earlier_outcome(service, claim) is not None:
        return _summary(await find(service, org, id_of_wallet(address)))
    policy = await policies.find(service, org, body.policy_id)
    new = WalletDetails(
        wallet_id=id_of_wallet(address),
        org=org,
        vault=str(address),
        agent_id=body.agent_id,
        label=body.label,
        tags=tuple(body.tags),
        created_at=await service.clock.moment_ms(),
    )
    authority = await attaching_authority(service, principal, claim)
    creation = service.instructions(org).create_wallet(
        payer=service.signers.fee_payer_address,
        operator=service.signers.operator_address,
        agent_id=body.agent_id,
        policy=Pubkey.from_string(policy.address),
        policy_version=policy.version,
        authority=None if authority is None else authority.address,
    )
    instructions, attached = [creation], {"policy_id": policy.policy_id}
    if body.budget_id is not None:
        budget = await budgets.find(service, org, body.budget_id)
        instructions.append(
            service.instructions(org).set_wallet_budget(
                signer=service.signers.operator_address,
                vault=address,
                expected_attachments=0,
                authority=None if authority is None else authority.address,
                **budgets.target(budget),
            )
        )
        attached["budget_id"] = budget.budget_id
    plan = Plan(
        org=org,
        type=_CREATE,
        instructions=instructions,
        signers=[service.signers.operator],
        authority=authority,
        wallet_id=new.wallet_id,
        policy_id=policy.policy_id,
        entry=principal.entry("wallet.create", new.wallet_id, **attached),
        on_store=lambda conn, _attempt: insert_wallet_details(conn, new),
    )
    if await service.db.read(lambda conn: has_wallet(conn, org, new.wallet_id)):
        raise ConflictError("wallet_agent_id_conflict")
    try:
        await submit(service, plan, claim)
    except AgentIdTakenError:
        raise ConflictError("wallet_agent_id_conflict") from None
    except SimulationFailedError as refused:
        # The System program refuses to create an account twice, even before the read models know the first wallet.
        if error_name(service.codec, refused) is None and await _is_made(service, new):
            raise ConflictError("wallet_agent_id_conflict") from None
        raise business_error(service.codec, refused) from None
    return _summary(await find(service, org, new.wallet_id))


async def _is_made(service: Service, new: WalletDetails) -> bool:
    """Return True if the vault is on the chain or another request is creating it.

    An address that only holds lamports is not a vault. A simulation already shows the account of a transaction that
    another node has just sent, before that transaction is confirmed.
    """
    if await service.db.read(lambda conn: has_wallet_details(conn, new.wallet_id)):
        return True
    account = await service.chain.account(new.vault)
    return account is not None and bool(account.data)


async def _check_owner(service: Service, org: str, named: str | None) -> None:
    """Raise ``invalid_request`` if ``named`` is an organisation other than ``org``, the API key's."""
    if named is None or named == org:
        return
    own = await service.db.read(lambda conn: organisation(conn, org))
    if own is None or named != own.org_id:
        raise RequestError("invalid_request", "ownerOrg: must be the organisation of the API key.")


async def caught_up(service: Service, org: str, wallet_id: str) -> WalletRecord:
    """Return an unarchived wallet in its current on-chain state. Raises ``chain_unavailable`` if that is unknown."""
    await require_no_gap(service, (await find_living(service, org, wallet_id)).vault)
    return await find_living(service, org, wallet_id)


async def update(
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: UpdateWallet
) -> WalletDetail:
    """Change a wallet: policy, budget and status in one transaction on the chain, label and tags in the database.

    Lifting a manual freeze needs an admin's key and the authority. A freeze overtakes payments, even if it comes with a
    new policy and therefore waits for earlier changes. If a request was already answered, its repetition only freezes
    the wallet again, unless the wallet is still frozen.
    """
    if claim.attempt is None:
        await find_living(service, principal.org, wallet_id)
    if body.brakes or body.label is not None or body.tags is not None:
        refuse_unneeded_offline(claim)
    done = claim.first_called_at is not None or (claim.attempt is not None and claim.attempt.status == "confirmed")
    # If an earlier run has carried out the change, make only its freeze again.
    freezes = body.brakes and (done or (body.policy_id is None and not body.moves))
    if freezes:
        await freeze(service, principal, claim, wallet_id)
    elif body.policy_id is not None or body.status is not None or body.moves:
        async with AsyncExitStack() as stack:
            if body.brakes:
                await stack.enter_async_context(braked(service, principal, wallet_id))
            await stack.enter_async_context(service.locks.hold(LockScope.WALLET_STATE, wallet_id))
            await _update(service, principal, claim, wallet_id, body)
    if claim.first_called_at is None and (body.label is not None or body.tags is not None):
        now = service.clock.seen_ms()
        alone = body.policy_id is None and body.status is None and not body.moves
        store = claim.store_once if alone else claim.store
        await store(lambda conn: _set_details(conn, principal, wallet_id, body, now))
    changed = await find(service, principal.org, wallet_id)
    # The chain has confirmed the freeze, but the read models may not show it yet.
    return shown(replace(changed, status="frozen") if freezes else changed)


async def _update(service: Service, principal: Principal, claim: Claim, wallet_id: str, body: UpdateWallet) -> None:
    """Change the wallet's policy, budget and status on the chain, where the values in the body differ from it."""
    if await earlier_outcome(service, claim) is not None:
        return
    stops = body.brakes or body.policy_id is not None
    kind = UNFREEZE if body.status == "active" else _STOP if stops else _UPDATE
    await require_no_pending_change(service, principal.org, kind.waits_for, wallet_id=wallet_id)

    async def plan() -> Plan | None:
        # A freeze may still be on its way to the chain. Without this check, the request would find no freeze on the
        # chain yet, and would report the freeze as lifted.
        await service.brake.check_all_nodes(kind, principal.org, wallet_id)
        before = await caught_up(service, principal.org, wallet_id)
        instructions, authority = await changes(service, principal, claim, before, body)
        if not instructions:
            return None
        return Plan(
            org=principal.org,
            type=kind,
            instructions=instructions,
            signers=[service.signers.operator],
            authority=authority,
            wallet_id=wallet_id,
            entry=_entry(principal, wallet_id, body),
        )

    await carry_out_current(service, plan, claim, overtakes=body.brakes)


def _set_details(conn: Connection, principal: Principal, wallet_id: str, body: UpdateWallet, now: int) -> None:
    update_wallet_details(conn, wallet_id, now=now, label=body.label, tags=body.tags)
    changed = [name for name in ("label", "tags") if getattr(body, name) is not None]
    append(conn, principal.entry("wallet.update", wallet_id, fields=changed))


def _entry(principal: Principal, wallet_id: str, body: UpdateWallet) -> NewLogEntry:
    """Return the audit log entry of an on-chain change. The brake records freezes."""
    attached: dict[str, str | None] = {} if body.policy_id is None else {"policy_id": body.policy_id}
    if body.moves:
        attached["budget_id"] = body.budget_id
    return principal.entry("wallet.unfreeze" if body.status == "active" else "wallet.update", wallet_id, **attached)


def warnings(found: WalletRecord) -> list[str]:
    """Return a warning if the wallet can use up its budget alone."""
    rules = found.policy.rules
    lacking = {"maxPerDay": rules.max_per_day, "velocityCap": rules.velocity_cap}
    names = [name for name, limit in lacking.items() if limit is None]
    if found.budget is None or not names:
        return []
    return [f"This wallet might use up its budget alone: its policy has no {' and no '.join(names)}."]


def shown(found: WalletRecord) -> WalletDetail:
    """Return a wallet as the response to `GET /v1/wallets/{wallet_id}` shows it."""
    return WalletDetail.of(found, warnings=warnings(found))


def _summary(found: WalletRecord) -> Wallet:
    """Return a wallet in the form that lists of wallets contain."""
    return Wallet.of(found, warnings=warnings(found))
