"""Choose the cheapest of a resource's offers that a wallet can pay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.chain.fees import TRANSFER
from app.core.errors import ApiError, BusinessError
from app.core.money import format_usdc
from app.core.transaction_types import ALLOWANCE, ENFORCED, SettlementPath
from app.payments.refusals import FACILITATOR_CANNOT_PAY, NO_ACCOUNT
from app.x402.offers import MAX_REASONS, Offer, Offers, usable_offers
from app.x402.payer import PAYS_ITSELF, Payer
from app.x402.probing import known_settlement_path, not_supported

#: Number of the cheapest offers with accounts to look up. One request returns up to 100 accounts.
_MAX_OFFERS = 49


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen offer, warnings about the others, and the ``obstacle``, the error that a payment would get.

    ``lane`` is the offer's settlement path, or None if only a probe can tell. ``obstacle`` is None if no obstacle is
    known. Obstacles on the chain are unknown unless the chain was asked.
    """

    offer: Offer
    lane: SettlementPath | None
    warnings: list[str]
    obstacle: ApiError | None


async def choose(
    payer: Payer, url: httpx.URL, offered: Sequence[Offers], *, most: int | None = None, look: bool = False
) -> Choice:
    """Return the cheapest offer for the service's chain and mint that can be paid, or else the cheapest of all.

    The payees' and fee payers' accounts are read from the chain if ``look`` is True, if the offers differ in payee or
    fee payer, or if a third party would pay the fee of a transfer out of an allowance.

    Raises the errors of ``usable_offers``, ``x402_price_too_high`` if the chosen offer costs more than ``most``
    micro-USDC, ``x402_host_not_allowed`` if the allowlist permits no offer for the URL's host, and, if ``most`` is
    given, ``x402_resource_unavailable`` if no facilitator can pay the fee.
    """
    offers, warnings = usable_offers(offered)
    offers = dict(sorted(offers.items(), key=lambda one: one[1].amount))
    cheapest = list(offers.items())[:_MAX_OFFERS]
    lanes = {key: await known_settlement_path(payer, url, one) for key, one in cheapest}
    itself = ApiError("invalid_recipient", PAYS_ITSELF)
    # Of several obstacles to an offer, the last one counts.
    obstacles = {
        **{key: error for key, one in offers.items() if (error := not_supported(payer, one, lanes.get(key, one.lane)))},
        **await payer.not_permitted(url, offers),
        **{key: itself for key, one in offers.items() if one.pay_to == payer.wallet.vault},
    }
    left = {key: one for key, one in offers.items() if key not in obstacles}
    # No simulation of the program shows if a third party can pay the fee of a transfer out of an allowance.
    unseen = any(one.sponsored and lanes.get(key) == ALLOWANCE for key, one in left.items())
    if look or unseen or len({(one.pay_to, one.fee_payer) for one in left.values()}) > 1:
        obstacles |= await _seen_on_chain(payer, left, lanes)
    chosen = next((key for key in offers if key not in obstacles), next(iter(offers)))
    obstacle, offer = obstacles.pop(chosen, None), offers[chosen]
    warnings += [f"{key} was skipped: {error.message}" for key, error in obstacles.items()]
    warnings = warnings[:MAX_REASONS]
    if most is not None and offer.amount > most:
        price = format_usdc(offer.amount)
        message = f"The resource costs {price} USDC, more than maxAmount {format_usdc(most)}."
        raise BusinessError("x402_price_too_high", " ".join([message, *warnings]), fields={"price": price})
    fatal = {"x402_host_not_allowed", *(["x402_resource_unavailable"] if most is not None else [])}
    if obstacle is not None and obstacle.code in fatal:
        raise obstacle
    lane = lanes[chosen] if chosen in lanes else await known_settlement_path(payer, url, offer)
    return Choice(offer, lane, warnings, obstacle)


async def _seen_on_chain(
    payer: Payer, offers: Mapping[str, Offer], lanes: Mapping[str, SettlementPath | None]
) -> dict[str, ApiError]:
    """Return the reasons why the cheapest offers cannot be paid, judged by their payees' and fee payers' accounts."""
    service, some = payer.service, dict(list(offers.items())[:_MAX_OFFERS])
    tokens = {one.pay_to: service.addresses.token_account(Pubkey.from_string(one.pay_to)) for one in some.values()}
    payers = {one.fee_payer: Pubkey.from_string(one.fee_payer) for one in some.values()}
    wanted = [*tokens.values(), *payers.values()]
    found = dict(zip(wanted, await service.chain.accounts(wanted), strict=True))
    obstacles, opens = dict[str, ApiError](), await payer.opens_accounts()
    for key, one in some.items():
        paid, paying = found[tokens[one.pay_to]], found[payers[one.fee_payer]]
        # Only the grant of an allowance can open the account.
        opened = opens and paid is None and lanes.get(key, one.lane) != ENFORCED
        if not opened and (paid is None or paid.token_amount is None):
            obstacles[key] = ApiError("invalid_recipient", NO_ACCOUNT)
        elif paying is None or paying.lamports < TRANSFER or paying.owner != SYSTEM_PROGRAM:
            obstacles[key] = BusinessError("x402_resource_unavailable", FACILITATOR_CANNOT_PAY)
    return obstacles
