"""Recipients: finding the address behind what a client names, and what the operator registers of it."""

from dataclasses import dataclass

from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.chain.addresses import domain_hash
from app.chain.rules import CATEGORIES
from app.core.errors import AuthenticationError, BusinessError, NotFoundError, RequestError, UnavailableError
from app.core.identifiers import is_id
from app.core.timestamps import iso, now_ms
from app.recipients.domains import DomainResolver, normalise
from app.recipients.models import PutRecipient, RegisteredRecipient
from app.store.recipients import Recipient, put_domain, recipient, recipient_by_domain
from app.store.wallets import WalletRecord, wallet
from app.submission.changes import carry_out, resumed
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.ordering import wait_for_earlier
from app.submission.plan import Plan, PlanType
from app.submission.refusals import RECEIVER_ARCHIVED, invalid_recipient

_REGISTER = PlanType("register_recipient", resent=False, waits_for=frozenset({"register_recipient"}))
PLAN_TYPES = (_REGISTER,)


@dataclass(frozen=True, slots=True)
class Payee:
    """Who is paid: the owner of the receiving token account, and the name under which the payment is remembered."""

    owner: Pubkey
    name: str


def parse_address(text: str) -> Pubkey | None:
    """Return the address that a text is, or None."""
    try:
        return Pubkey.from_string(text) if 32 <= len(text) <= 44 else None
    except ValueError:
        return None


async def resolve(service: Service, org: str, to: str) -> Payee:
    """Return the payee that ``to`` names: an address, a wallet of the organisation or a domain.

    A domain is what the operator registered, else what it names itself; asking it registers nothing.
    Raises ``invalid_recipient`` and ``wallet_archived``.
    """
    address = parse_address(to)
    if address is not None:
        return Payee(address, to)
    if is_id("wal_", to):
        found = await receiving_wallet(service, org, to, "to")
        return Payee(Pubkey.from_string(found.vault), found.vault)
    domain = normalise(to)
    if domain is None:
        raise invalid_recipient("to")
    registered = await service.db.read(lambda conn: recipient_by_domain(conn, org, domain))
    if registered is not None:
        return Payee(Pubkey.from_string(registered.address), domain)
    try:
        named = parse_address(await service.part(DomainResolver).resolve(domain, org))
    except RequestError as error:
        raise invalid_recipient("to", error.message) from None
    if named is None:
        raise invalid_recipient("to", "The domain names something that is no chain address.")
    return Payee(named, domain)


async def receiving_wallet(service: Service, org: str, identifier: str, field: str) -> WalletRecord:
    """Return the wallet that a ``field`` names to be paid. Raises ``invalid_recipient`` and ``wallet_archived``."""
    found = await service.db.read(lambda conn: wallet(conn, org, identifier, now_ms()))
    if found is None:
        raise invalid_recipient(field, "There is no such wallet to pay to.")
    if found.archived:
        raise BusinessError("wallet_archived", RECEIVER_ARCHIVED)
    return found


async def allowlist_entry(service: Service, org: str, text: str, field: str) -> tuple[str, bytes]:
    """Return an allowlist's entry as it is shown and as it stands on the chain. Raises ``invalid_recipient``."""
    address = parse_address(text)
    if address is not None:
        return text, bytes(address)
    if is_id("wal_", text):
        found = await service.db.read(lambda conn: wallet(conn, org, text, now_ms()))
        if found is not None:
            return found.vault, bytes(Pubkey.from_string(found.vault))
    domain = normalise(text)
    if domain is None:
        raise invalid_recipient(field, "It must be a chain address, a wallet id or a domain.")
    return domain, domain_hash(domain)


async def put(
    service: Service, principal: Principal, claim: Claim, name: str, body: PutRecipient
) -> RegisteredRecipient:
    """Register the category of an address, or the address and category of a domain.

    The operator adds; what is registered is changed by the authority, so that takes an admin's key. A domain that
    moves to another address is taken from the old one in the same transaction.
    """
    target = _target(name, body)
    # One after the other, so that each decides by what the one before has registered.
    async with service.locks.hold(LockScope.RECIPIENTS, principal.org):
        await _put(service, principal, claim, target, body.category)
    found = await service.db.read(lambda conn: recipient(conn, principal.org, str(target[1])))
    if found is None:
        raise UnavailableError("chain_unavailable")
    return _answer(found)


async def _put(
    service: Service, principal: Principal, claim: Claim, target: tuple[str | None, Pubkey], named: str | None
) -> None:
    """Register the target, a domain and an address, with the named category, as far as that changes something."""
    domain, address = target
    org = principal.org
    if await resumed(service, claim) is not None:
        return
    touched = {str(address), *([domain] if domain else [])}
    await wait_for_earlier(
        service,
        org,
        _REGISTER.waits_for,
        where=lambda earlier: not touched.isdisjoint({earlier.recipient, earlier.recipient_address}),
    )
    existing = await service.db.read(lambda conn: recipient(conn, org, str(address)))
    moved = await service.db.read(lambda conn: recipient_by_domain(conn, org, domain)) if domain else None
    if moved is not None and moved.address == str(address):
        moved = None
    category = CATEGORIES.index(named) if named else existing.category if existing else 0
    if existing and existing.category == category and (domain is None or existing.domain == domain) and not moved:
        return
    if (existing or moved) and principal.role != "admin":
        raise AuthenticationError("insufficient_permissions", "Changing what is registered needs an admin's key.")
    signer = service.signers.require_authority() if existing or moved else service.signers.operator
    payer = service.signers.fee_payer_address
    build = service.instructions(org)
    instructions = [
        build.register_recipient(
            payer=payer,
            signer=signer.pubkey(),
            address=address,
            category=category,
            domain=domain or (existing.domain if existing else None),
        )
    ]
    if moved is not None:
        freed = Pubkey.from_string(moved.address)
        instructions.append(
            build.register_recipient(
                payer=payer, signer=signer.pubkey(), address=freed, category=moved.category, domain=None
            )
        )
    plan = Plan(
        org=org,
        type=_REGISTER,
        instructions=instructions,
        signers=[signer],
        recipient=domain or str(address),
        recipient_address=str(address),
        on_store=lambda conn, _attempt: put_domain(conn, domain) if domain else None,
    )
    await carry_out(service, plan, claim)


async def get(service: Service, principal: Principal, name: str) -> RegisteredRecipient:
    """Return what is registered for an address or a domain. Raises ``recipient_not_found``."""
    org = principal.org
    domain = None if parse_address(name) else normalise(name)
    if domain is not None:
        found = await service.db.read(lambda conn: recipient_by_domain(conn, org, domain))
    else:
        found = await service.db.read(lambda conn: recipient(conn, org, name))
    if found is None:
        raise NotFoundError("recipient_not_found")
    return _answer(found)


def _target(name: str, body: PutRecipient) -> tuple[str | None, Pubkey]:
    address = parse_address(name)
    if address is not None:
        if body.address not in (None, name):
            raise invalid_recipient("address", "It must be absent or the address in the path.")
        return None, address
    domain = normalise(name)
    if domain is None:
        raise RequestError("invalid_recipient")
    named = parse_address(body.address) if body.address else None
    if named is None:
        raise invalid_recipient("address", "A domain is registered with its chain address.")
    return domain, named


def _answer(found: Recipient) -> RegisteredRecipient:
    return RegisteredRecipient(
        recipient=found.domain or found.address,
        address=found.address,
        domain=found.domain,
        category=CATEGORIES[found.category],
        effective_at=iso(found.effective_at),
    )
