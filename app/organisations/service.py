"""Creates organisations on the chain and in the database."""

from app.chain.errors import RpcError
from app.chain.instructions import Instructions
from app.core.money import parse_usdc
from app.core.paths import ConfigurationError
from app.core.timestamps import now_ms
from app.store.organisations import Organisation, insert_organisation, organisation
from app.submission.changes import carry_out
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.plan import Plan, PlanType

_INITIALIZE = PlanType("initialize_org")
PLAN_TYPES = (_INITIALIZE,)
#: Lamports asked from a faucet.
_AIRDROP = 10**9


async def ensure_fees(service: Service) -> None:
    """Make sure that the fee payer has lamports, from the faucet of a test network if necessary.

    Raises ConfigurationError with the address to fund if there is no faucet.
    """
    address = service.signers.fee_payer_address
    if await service.chain.account(address) is not None:
        return
    if service.settings.cluster == "mainnet-beta":
        raise ConfigurationError(f"the fee payer {address} has no SOL; send some to it first")
    try:
        signature = await service.chain.airdrop(address, _AIRDROP)
    except RpcError as error:
        raise ConfigurationError(f"the fee payer {address} has no SOL and the faucet gives none: {error}") from None
    await service.chain.confirm(signature, timeout=30)


async def create(service: Service, org_id: str) -> Organisation:
    """Create the organisation with this id, or return the existing one.

    The service's authority key becomes its creator and authority. It is stored before the chain creates it, so that
    the projector skips none of its events.
    """
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
    known = await service.db.read(lambda conn: organisation(conn, new.org))
    if known is None:
        await service.db.write(lambda conn: insert_organisation(conn, new))
    if await service.chain.account(address) is None:
        arbiter = (service.signers.arbiter or authority).pubkey()
        creation = build.initialize_org(
            payer=service.signers.fee_payer_address,
            creator=authority.pubkey(),
            org_id=org_id,
            operator=service.signers.operator_address,
            arbiter=arbiter,
            verifier=arbiter,
            operator_daily_limit=parse_usdc(service.settings.operator_daily_limit, allow_zero=True),
            attestation_delay=service.settings.attestation_delay,
        )
        plan = Plan(org=new.org, type=_INITIALIZE, instructions=[creation], signers=[authority])
        await carry_out(service, plan, Claim(service.db))
    return known or new
