"""Read the offers of all protocols in the 402 response of a resource."""

from collections.abc import Sequence

from app.core.errors import BusinessError
from app.core.outbound import Received
from app.core.timestamps import host_ms
from app.x402.offers import Json, Network, Offers, quoted
from app.x402.protocols import mpp, x402


def offers_of(answer: Received, network: Network, body: bytes) -> Sequence[Offers]:
    """Return the offers of each protocol in the 402 response to a request with this ``body``.

    Raises ``x402_invalid_terms`` if the response violates the protocols. An offer's expiry is compared with this
    machine's clock, because the server that set the expiry also uses real time.
    """
    challenges, others = mpp.read_challenges(answer.headers.get(mpp.CHALLENGE_HEADER, ""))
    try:
        found = [x402.offers_in(x402.payment_required_in(answer), network)]
    except BusinessError as error:
        # The body of an MPP server's response has no terms.
        if not challenges:
            raise _unsupported(others, error) from None
        found = []
    return [*found, mpp.offers_in(challenges, network, body, host_ms())] if challenges else found


def offers_from_client(given: str | Json, network: Network) -> Sequence[Offers]:
    """Return the offers in a 402 response that a client passes on. Raises ``x402_invalid_terms``."""
    challenges, others = (
        mpp.read_challenges(given) if isinstance(given, str) else (mpp.challenges_from_tool(given), list[str]())
    )
    if challenges:
        return [mpp.offers_in(challenges, network, None, host_ms())]
    try:
        return [x402.offers_in(x402.payment_required_from_client(given), network)]
    except BusinessError as error:
        raise _unsupported(others, error) from None


def _unsupported(schemes: Sequence[str], malformed: BusinessError) -> BusinessError:
    """Return the error for terms that are not x402. They may be a challenge of an unsupported protocol."""
    if not schemes:
        return malformed
    message = (
        f"The 402 response offers {quoted('protocol', schemes[0])}; this service pays x402 and MPP. Nothing was paid."
    )
    return BusinessError("x402_no_acceptable_offer", message)
