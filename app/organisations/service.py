"""Creates organisations on the chain and in the database, and shows them."""

import re

from pydantic.alias_generators import to_camel
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import optional
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.instructions import Instructions
from app.chain.records import RawAccount
from app.core.errors import RequestError, UnavailableError
from app.core.money import format_sol, parse_usdc
from app.core.paths import ConfigurationError
from app.core.timestamps import DAY, now_ms
from app.database.record_tables import insert_record
from app.organisations.models import Organization, OrganizationRoles, SolUse, UpdateOrganization
from app.store.audit import append
from app.store.fee_payer_use import average_use, limits_of, put_limits, use_of
from app.store.organisations import Organisation, organisation, reserve, set_key_restrictions
from app.submission.changes import carry_out
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.fee_payer import LIMITS, FeePayer
from app.submission.plan import Plan, PlanType

#: Pattern of an organisation's id.
_ORG_ID = re.compile(r"[a-z0-9-]{1,64}")

_INITIALIZE = PlanType("initialize_org")
PLAN_TYPES = (_INITIALIZE,)
#: Lamports to request from a public faucet, which gives little at a time, and from the faucet of a local network.
_AIRDROP, _OWN_AIRDROP = 10**9, 1_000 * 10**9
#: Lamports needed to create an organisation: rent, the fee, and the minimum that keeps the fee payer rent-exempt.
_CREATION = 21_000_000


async def ensure_fees(service: Service) -> None:
    """Ensure that the fee payer has enough SOL to create an organisation.

    If it has not, requests SOL from the cluster's faucet. Raises ConfigurationError with the address to fund on
    mainnet-beta, which has no faucet, and if the faucet's SOL does not arrive.
    """
    address = service.signers.fee_payer_address
    account = await service.chain.account(address)
    if account is not None and account.lamports >= _CREATION:
        return
    lacks = f"the fee payer {address} has less than the {_CREATION / 10**9} SOL needed to create an organisation"
    if service.identity.cluster == "mainnet-beta":
        raise ConfigurationError(f"{lacks}; fund it first")
    try:
        own = service.identity.cluster == "localnet"
        signature = await service.chain.airdrop(address, _OWN_AIRDROP if own else _AIRDROP)
        status = await service.chain.confirm(signature, timeout=30)
    except (RpcError, ChainUnavailable) as error:
        raise ConfigurationError(f"{lacks}, and the faucet gave none ({error}); fund it first") from None
    if status is None or status.err is not None:
        raise ConfigurationError(f"{lacks}, and the faucet's SOL did not arrive; fund it first")


def check_id(org_id: str) -> None:
    """Raise ConfigurationError for an invalid organisation id."""
    if not _ORG_ID.fullmatch(org_id):
        raise ConfigurationError("the id of an organisation must have 1 to 64 characters from a-z, 0-9 and -")


async def create(service: Service, org_id: str) -> Organisation:
    """Create the organisation with this id, or return the existing one.

    The service's authority key becomes its creator and authority. The organisation is stored before the chain creates
    it, so that the projector skips none of its events. Raises ConfigurationError for an invalid id and for an
    existing organisation that names another cluster, and ``authority_offline`` if the service lacks the authority's
    key.
    """
    check_id(org_id)
    authority = service.signers.require_authority()
    address = service.addresses.org(authority.pubkey(), org_id)
    build = Instructions(service.codec, service.addresses, address)
    new = Organisation(
        org=str(address),
        org_id=org_id,
        name=org_id,
        creator=str(authority.pubkey()),
        mint=str(service.addresses.mint),
        reserve=str(build.reserve_tokens),
        created_at=now_ms(),
    )
    account = await service.chain.account(address)
    if account is not None:
        _check_cluster(service, account)
    known = await service.db.read(lambda conn: organisation(conn, new.org))
    if known is None:
        await service.db.write(lambda conn: insert_record(conn, new))
    if account is None:
        arbiter = (service.signers.arbiter or authority).pubkey()
        creation = build.initialize_org(
            payer=service.signers.fee_payer_address,
            creator=authority.pubkey(),
            org_id=org_id,
            genesis_hash=service.identity.genesis_bytes,
            operator=service.signers.operator_address,
            arbiter=arbiter,
            verifier=arbiter,
            operator_daily_limit=parse_usdc(service.settings.operator_daily_limit, allow_zero=True),
            attestation_delay=service.settings.attestation_delay,
        )
        plan = Plan(org=new.org, type=_INITIALIZE, instructions=[creation], signers=[authority])
        await carry_out(service, plan, Claim(service.db))
    return known or new


def _check_cluster(service: Service, account: RawAccount) -> None:
    """Refuse an organisation that names another cluster.

    The program cannot check the genesis hash that the organisation was created with.
    """
    if account.decode(service.codec).data["genesis_hash"] != service.identity.genesis_bytes:
        raise ConfigurationError("the organisation was created for another cluster: its genesis hash is not the node's")


async def show(service: Service, principal: Principal) -> Organization:
    """Return the caller's organisation. Raises ``chain_unavailable`` until its creation was read from the chain."""
    org, identity = principal.org, service.identity
    found, state = await service.db.read(lambda conn: (organisation(conn, org), reserve(conn, org)))
    if found is None or state is None:
        raise UnavailableError("chain_unavailable", "The organisation is not on the chain yet. Retry later.")
    return Organization.of(
        found,
        sol=await _sol(service, org),
        reserve_balance=state.balance,
        program_id=identity.program_id,
        cluster=identity.cluster,
        genesis_hash=identity.genesis_hash,
        paused=state.paused,
        authority_attaches=state.authority_attaches,
        roles=OrganizationRoles.of(state, fee_payer=str(service.signers.fee_payer_address)),
    )


async def restrict_keys(principal: Principal, claim: Claim, *, required: bool) -> None:
    """Set or end the requirement that new API keys of the caller's organisation have an expiry and allowed addresses.

    A request repeated after a crash changes nothing, because the setting may have been changed since.
    """

    def store(conn: Connection) -> None:
        set_key_restrictions(conn, principal.org, required=required)
        append(conn, principal.entry("organization.restrict_keys", principal.org, required=required))

    await claim.store_once(store)


async def _sol(service: Service, org: str) -> SolUse:
    payer, day = service.part(FeePayer), service.clock.seen_ms() // DAY
    own, (spent, _), average = await service.db.read(
        lambda conn: (limits_of(conn, org), use_of(conn, org, day), average_use(conn, day))
    )
    balance = await payer.balance()
    return SolUse(
        **{name: optional(format_sol, payer.limit(name, own)) for name in LIMITS},
        spent_today=format_sol(spent),
        fee_payer_balance=optional(format_sol, balance),
        fee_payer_reserve=format_sol(payer.reserve),
        fee_payer_days_left=max(0, balance - payer.reserve) // average if balance is not None and average else None,
    )


async def limit_sol(service: Service, principal: Principal, claim: Claim, body: UpdateOrganization) -> Organization:
    """Set the organisation's own limits in SOL.

    A request repeated after a crash changes nothing, because the limits may have been changed since. Raises
    ``invalid_request`` for a limit above the service's.
    """
    org, payer = principal.org, service.part(FeePayer)
    given: dict[str, int | None] = {name: getattr(body, name) for name in LIMITS if name in body.model_fields_set}
    for name, limit in given.items():
        if limit is not None and limit != payer.limit(name, {name: limit}):
            raise RequestError("invalid_request", f"{to_camel(name)}: must not exceed the limit of the service.")

    def store(conn: Connection) -> None:
        own = limits_of(conn, org) | given
        put_limits(conn, org, {name: limit for name, limit in own.items() if limit is not None})
        details = {name: optional(format_sol, limit) for name, limit in given.items()}
        append(conn, principal.entry("organization.limit", org, **details))

    await claim.store_once(store)
    return await show(service, principal)
