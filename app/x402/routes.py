"""Operations on paid requests: quotes, requests that pay, and payments for the client's own requests."""

from app.access.auth import PAYERS
from app.api.operation import Call, operation
from app.payments.expense_errors import SPENDING_ERRORS
from app.x402 import service as x402
from app.x402.fetching import Fetcher
from app.x402.models import FetchedResource, FetchPaidResource, HandedOut, PayOffer, Quote, QuotePaidResource

_ASKING = (
    "wallet_not_found",
    "wallet_archived",
    "invalid_recipient",
    "x402_host_not_allowed",
    "x402_resource_unavailable",
    "x402_invalid_terms",
    "x402_no_acceptable_offer",
)
_PAYING = (
    *_ASKING,
    *SPENDING_ERRORS,
    "x402_price_too_high",
    "x402_wallet_not_supported",
    "too_many_allowances",
)


@operation("POST /v1/paid-requests/fetch", roles=PAYERS, errors=_PAYING, session=True)
async def fetch_paid_request(call: Call, body: FetchPaidResource) -> FetchedResource:
    """Get a resource and pay for it, by x402 or MPP.

    If the resource answers 402, the wallet pays its cheapest offer, up to `maxAmount` and within its policy. The
    service then repeats the request with the payment. `payment` is null if the resource required no payment. Otherwise
    `payment.status` is `confirmed` once the resource has been paid.
    """
    return await _fetch(call, body)


@operation("POST /v1/paid-requests/payments", roles=PAYERS, errors=_PAYING, session=True)
async def pay_for_request(call: Call, body: PayOffer) -> HandedOut:
    """Pay for a request that you send yourself, by x402 or MPP.

    Returns the header to send with your request. The facilitator or server of the resource sends the payment to the
    chain. Until it lands, the payment is `pending`. It fails if it has not landed within about a minute.
    """
    return await x402.pay_offer(call, body)


@operation("POST /v1/paid-requests/quote", roles=PAYERS, errors=_ASKING, session=True)
async def quote_paid_request(call: Call, body: QuotePaidResource) -> Quote:
    """Get the price of a resource, its protocol and settlement path.

    Sends the request without a payment and asks the program for its verdict on the price. Nothing is paid.
    """
    return await _quote(call, body)


@operation("POST /v1/x402/fetch", roles=PAYERS, errors=_PAYING, session=True)
async def fetch_paid_resource(call: Call, body: FetchPaidResource) -> FetchedResource:
    """Get a resource and pay for it. An older path of `POST /v1/paid-requests/fetch`."""
    return await _fetch(call, body)


@operation("POST /v1/x402/payments", roles=PAYERS, errors=_PAYING, session=True)
async def pay_x402_offer(call: Call, body: PayOffer) -> HandedOut:
    """Pay for a request that you send yourself. An older path of `POST /v1/paid-requests/payments`."""
    return await x402.pay_offer(call, body)


@operation("POST /v1/x402/quote", roles=PAYERS, errors=_ASKING, session=True)
async def quote_paid_resource(call: Call, body: QuotePaidResource) -> Quote:
    """Get the price of a resource. An older path of `POST /v1/paid-requests/quote`."""
    return await _quote(call, body)


async def _fetch(call: Call, body: FetchPaidResource) -> FetchedResource:
    with call.service.part(Fetcher).admitted(call.principal.org, body.wallet_id):
        return await x402.fetch(call, body)


async def _quote(call: Call, body: QuotePaidResource) -> Quote:
    with call.service.part(Fetcher).admitted(call.principal.org, body.wallet_id):
        return await x402.quote(call, body)
