"""Recipients: resolves the name in a request to an address, and registers the organisation's attestations."""

from collections.abc import Mapping
from dataclasses import dataclass

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.addresses import domain_hash, parse_address
from app.chain.rules import CATEGORIES
from app.core.errors import AuthenticationError, BusinessError, NotFoundError, UnavailableError
from app.core.identifiers import is_id
from app.recipients.domains import DomainResolver, normalise
from app.recipients.models import ListRecipients, PutRecipient, RecipientPage, RegisteredRecipient
from app.store.recipients import Recipient, put_domain, recipient, recipient_by_domain, recipients
from app.store.wallets import WalletRecord, orgs_of_vaults, wallet
from app.submission.chain_state import pending_or_missing, unverified_recipients
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.offline import authority_of
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType
from app.submission.program_errors import RECEIVER_ARCHIVED, invalid_recipient

#: Warnings about addresses of vaults. The program cannot recognise the address of a future vault, so the service warns
#: about the vaults that it knows.
_OWN_VAULT = "The address is a vault of this organisation: name its wallet instead."
_FOREIGN_VAULT = "The address is a vault of another organisation."
_REGISTER = PlanType("register_recipient", resent=False, waits_for=frozenset({"register_recipient"}))
PLAN_TYPES = (_REGISTER,)


@dataclass(frozen=True, slots=True)
class Payee:
    """A payee: the owner of the receiving token account, and the name to record with the payment.

    ``wallet_id`` is set if the payee is known to be a wallet of the organisation.
    """

    owner: Pubkey
    name: str
    wallet_id: str | None = None


async def resolve(service: Service, principal: Principal, to: str) -> Payee:
    """Return the payee that ``to`` names: an address, a wallet of the caller's organisation or a domain.

    A domain resolves to the address that is registered for it, else to the address that it publishes itself.
    This does not register the published address. Raises ``invalid_recipient`` if ``to`` is none of these or the domain
    publishes no valid address, ``wallet_archived`` for an archived wallet, and ``rate_limited`` while too many domains
    are being looked up for the caller.
    """
    org, address = principal.org, parse_address(to)
    if address is not None:
        return Payee(address, to)
    if is_id("wal_", to):
        return payee_of(await service.db.read(lambda conn: wallet(conn, org, to, service.clock.seen_ms())), "to")
    domain = normalise(to)
    if domain is None:
        raise invalid_recipient("to")
    registered = await service.db.read(lambda conn: recipient_by_domain(conn, org, domain))
    if registered is not None:
        return Payee(Pubkey.from_string(registered.address), domain)
    named = parse_address(await service.part(DomainResolver).resolve(domain, principal.owner))
    if named is None:
        raise invalid_recipient("to", "The domain publishes an invalid chain address.")
    return Payee(named, domain)


def payee_of(found: WalletRecord | None, field: str) -> Payee:
    """Return the wallet named by a ``field`` as a payee.

    Raises ``invalid_recipient`` if there is no such wallet, and ``wallet_archived`` if it is archived.
    """
    if found is None:
        raise invalid_recipient(field, "The organisation has no wallet with this id.")
    if found.archived:
        raise BusinessError("wallet_archived", RECEIVER_ARCHIVED)
    return Payee(Pubkey.from_string(found.vault), found.vault, found.wallet_id)


async def allowlist_entry(service: Service, org: str, text: str, field: str) -> tuple[str, bytes]:
    """Return an allowlist entry in displayed form and in on-chain form.

    Raises ``invalid_recipient`` for anything but an address, a wallet of the organisation or a domain.
    """
    address = parse_address(text)
    if address is not None:
        return text, bytes(address)
    if is_id("wal_", text):
        found = await service.db.read(lambda conn: wallet(conn, org, text, service.clock.seen_ms()))
        if found is not None:
            return found.vault, bytes(Pubkey.from_string(found.vault))
    domain = normalise(text)
    if domain is None:
        raise invalid_recipient(field, "The recipient must be a chain address, a wallet id or a domain.")
    return domain, domain_hash(domain)


async def put(
    service: Service, principal: Principal, claim: Claim, name: str, body: PutRecipient
) -> RegisteredRecipient:
    """Register the category of an address, or the address and category of a domain.

    The operator adds registrations. A change of a registration needs the authority's signature, and therefore an
    admin's key. A domain that moves to another address is removed from the old address in the same transaction.
    """
    domain, address = _target(name, body)
    org = principal.org
    # One at a time, so that each registration sees the previous one.
    async with service.locks.hold(LockScope.RECIPIENTS, org):
        if await earlier_outcome(service, claim) is None:
            plan = await _plan(service, principal, claim, (domain, address), body.category)
            if plan is not None:
                await carry_out(service, plan, claim)
    found = await service.db.read(lambda conn: recipient(conn, org, str(address)))
    if found is None:
        raise UnavailableError("chain_unavailable")
    shown, doubts = await _shown(service, found), await unverified_recipients(service, [address])
    return shown.model_copy(update={"warnings": [*shown.warnings, *doubts.values()]})


async def _plan(
    service: Service, principal: Principal, claim: Claim, target: tuple[str | None, Pubkey], named: str | None
) -> Plan | None:
    """Return the plan that registers a domain and its address, or an address alone, with a category.

    Returns None if nothing changes.
    """
    domain, address = target
    org, text = principal.org, str(address)
    touched = {text, domain} - {None}
    await require_no_pending_change(
        service,
        org,
        _REGISTER.waits_for,
        where=lambda earlier: not touched.isdisjoint({earlier.recipient, earlier.recipient_address}),
    )
    existing = await service.db.read(lambda conn: recipient(conn, org, text))
    moved = await service.db.read(lambda conn: recipient_by_domain(conn, org, domain)) if domain else None
    if moved is not None and moved.address == text:
        moved = None
    category = CATEGORIES.index(named) if named else existing.category if existing else 0
    if existing and existing.category == category and domain in (None, existing.domain) and not moved:
        return None
    changes = existing or moved
    if changes and principal.role != "admin":
        raise AuthenticationError("insufficient_permissions", "Only an admin may change a registration.")
    authority = await authority_of(service, org, claim) if changes else None
    replaced = existing.sequence if existing else 0
    registrations = [(address, category, domain or (existing.domain if existing else None), replaced)]
    if moved is not None:
        registrations.append((Pubkey.from_string(moved.address), moved.category, None, moved.sequence))
    payer = service.signers.fee_payer_address
    key = service.signers.operator_address if authority is None else authority.address
    return Plan(
        org=org,
        type=_REGISTER,
        instructions=[
            service.instructions(org).register_recipient(
                payer=payer, signer=key, address=whose, category=code, domain=its_domain, replaces=sequence
            )
            for whose, code, its_domain, sequence in registrations
        ],
        signers=[service.signers.operator],
        authority=authority,
        recipient=domain or text,
        recipient_address=text,
        entry=principal.entry("recipient.register", domain or text, address=text, category=CATEGORIES[category]),
        on_store=lambda conn, _attempt: put_domain(conn, domain) if domain else None,
    )


async def get(service: Service, principal: Principal, name: str) -> RegisteredRecipient:
    """Return the registration of an address or a domain. Raises ``recipient_not_found``."""
    domain = None if parse_address(name) else normalise(name)
    find, key = (recipient, name) if domain is None else (recipient_by_domain, domain)
    found = await service.db.read(lambda conn: find(conn, principal.org, key))
    if found is None:
        missing = NotFoundError("recipient_not_found")
        raise await pending_or_missing(
            service, principal.org, _REGISTER.name, lambda one: key in {one.recipient, one.recipient_address}, missing
        )
    return await _shown(service, found)


async def page(service: Service, principal: Principal, query: ListRecipients, search: str = "") -> RecipientPage:
    """Return one page of the organisation's registrations, the most recently changed first.

    With ``search``, only those with this address, or with this text in their domain.
    """

    def read(conn: Connection) -> RecipientPage:
        found = recipients(conn, principal.org, limit=query.limit, cursor=query.cursor, search=search)
        owners = orgs_of_vaults(conn, [one.address for one in found.data])
        return RecipientPage.showing(found, lambda one: _answer(one, owners))

    return await service.db.read(read)


def _target(name: str, body: PutRecipient) -> tuple[str | None, Pubkey]:
    """Return the domain to register, if any, and the address.

    Raises ``invalid_recipient`` if a domain has no address, or if the path and the body name different addresses.
    """
    address = parse_address(name)
    if address is not None:
        if body.address not in (None, name):
            raise invalid_recipient("address", "The address must equal the one in the path, or be omitted.")
        return None, address
    domain = normalise(name)
    if domain is None:
        raise invalid_recipient("recipient", "The recipient must be a chain address or a domain.")
    named = parse_address(body.address) if body.address else None
    if named is None:
        raise invalid_recipient("address", "Give the chain address of the domain.")
    return domain, named


async def _shown(service: Service, found: Recipient) -> RegisteredRecipient:
    return _answer(found, await service.db.read(lambda conn: orgs_of_vaults(conn, [found.address])))


def _answer(found: Recipient, owners: Mapping[str, str]) -> RegisteredRecipient:
    """Return a registration. `owners` maps addresses of vaults to their organisations."""
    owner = owners.get(found.address)
    return RegisteredRecipient.of(
        found,
        recipient=found.domain or found.address,
        category=CATEGORIES[found.category],
        warnings=[] if owner is None else [_OWN_VAULT if owner == found.org else _FOREIGN_VAULT],
    )
