"""The wallet that pays for requests: its permitted hosts and its issued payments."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from solders.keypair import Keypair

from app.api.operation import Call
from app.chain.addresses import parse_address
from app.core.errors import ApiError, BusinessError, RequestError
from app.core.hosts import ANY_HOST
from app.core.text import decode_base64
from app.payments.expenses import ExpenseRequest
from app.payments.service import PAY
from app.policies import service as policies
from app.policies.terms import with_recipients
from app.recipients.domains import normalise
from app.recipients.service import resolve
from app.store.attempts import Attempt
from app.store.recipients import recipient_by_domain
from app.store.wallets import WalletRecord
from app.store.x402 import IssuedPayment
from app.submission.context import Service
from app.submission.plan import PlanType
from app.submission.program_errors import invalid_recipient
from app.wallets import service as wallets
from app.x402.fetching import ResourceRequest
from app.x402.guard import RequestGuard, host_of
from app.x402.models import PayOffer, QuotePaidResource
from app.x402.offers import Network, Offer
from app.x402.outstanding import check_outstanding
from app.x402.settlement.instructions import programs

PAYS_ITSELF = "A wallet cannot pay itself."


@dataclass(frozen=True, slots=True)
class Payer:
    """A wallet that pays for requests, and the API ``call`` that requested the payment.

    Without a ``session``, the operator signs.
    """

    call: Call
    wallet: WalletRecord
    session: Keypair | None
    allows_unverified: bool

    @classmethod
    async def of(cls, call: Call, body: QuotePaidResource | PayOffer) -> "Payer":
        """Return the payer. Raises ``wallet_not_found``, ``wallet_archived`` and the errors of the session token."""
        wallet = await wallets.find_living(call.service, call.principal.org, body.wallet_id)
        # The body of a quote lacks this field, because a quote pays nothing.
        return cls(call, wallet, call.session(wallet), getattr(body, "allow_unverified_recipient", False))

    @property
    def service(self) -> Service:
        """The service."""
        return self.call.service

    async def request(self, body: QuotePaidResource) -> ResourceRequest:
        """Return the request to the resource. Raises the errors of ``RequestGuard``."""
        return request_of(self.service, body, await self._hosts())

    async def url(self, text: str) -> httpx.URL:
        """Return the URL of a resource if its host is permitted. Raises the errors of ``RequestGuard.url``."""
        return self.service.part(RequestGuard).url(text, await self._hosts())

    async def _hosts(self) -> list[str]:
        policy = await policies.find(self.service, self.wallet.org, self.wallet.policy.policy_id)
        if policy.x402_hosts is not None:
            return policy.x402_hosts
        return [ANY_HOST] if self.service.identity.cluster == "localnet" else []

    async def opens_accounts(self) -> bool:
        """Return True if the policy lets paid requests open the payee's token account."""
        return (await policies.find(self.service, self.wallet.org, self.wallet.policy.policy_id)).opens_accounts

    async def not_permitted(self, url: httpx.URL, offers: Mapping[str, Offer]) -> dict[str, ApiError]:
        """Return an error for each offer that the policy's allowlist can never permit, by the keys of ``offers``.

        If only a domain on the allowlist can permit the recipient, the URL's host must be listed, and the recipient
        must be the host's attested address. If they are not, the error is ``x402_host_not_allowed``.
        """
        found = await policies.find(self.service, self.wallet.org, self.wallet.policy.policy_id)
        listed = (await with_recipients(self.service, found)).allowed_recipients
        domains = {normalise(one) for one in listed if parse_address(one) is None}
        refused = {key: offer.pay_to for key, offer in offers.items() if listed and offer.pay_to not in listed}
        if not domains or not refused:
            reason = "The policy's allowedRecipients do not contain the recipient."
            return dict.fromkeys(refused, BusinessError("policy_violation", reason))
        host = url.raw_host.decode("ascii").rstrip(".").lower()
        message = f"The policy's allowedRecipients contain neither {host} nor the address that it asks to pay."
        if host in domains:
            attested = await self.service.db.read(lambda conn: recipient_by_domain(conn, self.wallet.org, host))
            # If no address is attested for the host, the program alone judges the recipient.
            refused = {key: to for key, to in refused.items() if attested is not None and attested.address != to}
            message = f"{host} requests payment to an address other than the one registered for it."
        return dict.fromkeys(refused, BusinessError("x402_host_not_allowed", message, fields={"host": host}))

    def network(self) -> Network:
        """Return the chain, the mint that the wallet pays with, the fee payer, and programs that cannot pay fees."""
        identity, fee_payer = self.service.identity, str(self.service.signers.fee_payer_address)
        return Network(identity.cluster, identity.genesis_hash, identity.mint, fee_payer, programs(self.service))

    async def expense(self, offer: Offer, kind: PlanType = PAY) -> ExpenseRequest:
        """Return the expense for an offer: an issued payment or, with the ``kind`` of a grant, its allowance.

        Raises ``invalid_recipient`` if the wallet would pay itself.
        """
        payee = await resolve(self.service, self.call.principal, offer.pay_to)
        if str(payee.owner) == self.wallet.vault:
            raise invalid_recipient("payTo", PAYS_ITSELF)
        return ExpenseRequest(
            self.wallet,
            payee,
            offer.amount,
            purpose="payment" if kind is PAY else "allowance",
            kind=kind,
            call=self.call,
            memo=None,
            session=self.session,
            issued=kind is PAY,
            allows_unverified=self.allows_unverified,
            first=check_outstanding,
        )


def request_of(service: Service, body: QuotePaidResource, hosts: Collection[str] = (ANY_HOST,)) -> ResourceRequest:
    """Return the request to the resource if its host is permitted. Raises the errors of ``Payer.request``."""
    guard = service.part(RequestGuard)
    headers = guard.headers(body.headers)
    return ResourceRequest(body.method, guard.url(body.url, hosts), headers, _content(body))


@dataclass(frozen=True, slots=True)
class PaidResourceTerms:
    """A resource to pay for: its ``url`` and its offer.

    ``fetched`` is True if the service itself requested the terms.
    """

    url: str
    offer: Offer
    fetched: bool

    def issued(self, payer: Payer, made: Attempt, raw: bytes, **more: Any) -> IssuedPayment:
        """Return the record of a signed transaction to store before it is handed out. ``made`` is its attempt."""
        offer = self.offer
        return IssuedPayment(
            tx_id=made.tx_id,
            org=payer.wallet.org,
            wallet_id=payer.wallet.wallet_id,
            url=self.url,
            host=host_of(httpx.URL(self.url)),
            scheme=offer.scheme,
            network=offer.network,
            pay_to=offer.pay_to,
            facilitator=offer.fee_payer,
            version=offer.version,
            # The wallet's id is included because a resource may give two payers with the same identifier the same
            # response.
            header=offer.write(raw, f"{payer.wallet.wallet_id} {payer.call.claim.key or made.tx_id}"),
            fetched=self.fetched,
            created_at=made.created_at,
            **more,
        )


def _content(body: QuotePaidResource) -> bytes:
    if body.body is None:
        return b""
    if body.body_encoding == "text":
        return body.body.encode()
    try:
        return decode_base64(body.body)
    except ValueError:
        raise RequestError("invalid_request", "body: must be base64.") from None
