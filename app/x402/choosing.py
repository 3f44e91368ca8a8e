"""Choose the offer of a resource that a wallet pays: the cheapest that can be paid."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.core.errors import BusinessError
from app.core.money import format_usdc
from app.payments.refusals import FACILITATOR_CANNOT_PAY, NO_ACCOUNT
from app.x402.offers import MAX_REASONS, Offer, PaymentRequired, usable_offers
from app.x402.paying import PAYS_ITSELF, Payer

#: Number of the cheapest offers with accounts to look up. One request returns up to 100 accounts.
_MAX_OFFERS = 49
#: Lamports that a settlement costs: two signatures, and the priority fee rounded up.
_FEE = 10_001


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen offer, warnings about the others, the ``obstacle`` that rules out its payment, and the balance.

    ``balance`` is the wallet's, in micro-USDC, or None if the chain was not asked. ``obstacle`` is None if there is
    none, or if the chain was not asked.
    """

    offer: Offer
    warnings: list[str]
    obstacle: str | None
    balance: int | None


async def choose(
    payer: Payer, url: httpx.URL, demand: PaymentRequired, *, most: int | None = None, look: bool = False
) -> Choice:
    """Return the cheapest offer for the service's chain and mint that can be paid, or else the cheapest of all.

    The chain is asked once for the accounts of the offers if several parties could be paid, and always with ``look``.

    Raises the errors of ``usable_offers``, ``x402_price_too_high`` if the chosen offer costs more than ``most``
    micro-USDC, and ``x402_host_not_allowed`` if the allowlist permits no offer for the URL's host.
    """
    offers, warnings = usable_offers(demand, payer.network())
    offers = dict(sorted(offers.items(), key=lambda one: one[1].amount))
    obstacles = await payer.not_permitted(url, offers)
    obstacles |= {key: PAYS_ITSELF for key, one in offers.items() if one.pay_to == payer.wallet.vault}
    balance = None
    left = {key: one for key, one in offers.items() if key not in obstacles}
    if look or len({(one.pay_to, one.fee_payer) for one in left.values()}) > 1:
        found, balance = await _seen_on_chain(payer, left)
        obstacles |= found
    chosen = next((key for key in offers if key not in obstacles), next(iter(offers)))
    obstacle, offer = obstacles.pop(chosen, None), offers[chosen]
    warnings += [f"accepts[{key}] was skipped: {reason}" for key, reason in obstacles.items()]
    warnings = warnings[:MAX_REASONS]
    if most is not None and offer.amount > most:
        price = format_usdc(offer.amount)
        message = f"The resource costs {price} USDC, more than maxAmount {format_usdc(most)}."
        raise BusinessError("x402_price_too_high", " ".join([message, *warnings]), fields={"price": price})
    if isinstance(obstacle, BusinessError):
        raise obstacle
    return Choice(offer, warnings, obstacle, balance)


async def _seen_on_chain(payer: Payer, offers: Mapping[int, Offer]) -> tuple[dict[int, str], int]:
    """Return the obstacles that the accounts of the cheapest offers show, and the wallet's balance."""
    service, some = payer.service, dict(list(offers.items())[:_MAX_OFFERS])
    tokens = {one.pay_to: service.addresses.token_account(Pubkey.from_string(one.pay_to)) for one in some.values()}
    payers = {one.fee_payer: Pubkey.from_string(one.fee_payer) for one in some.values()}
    own = Pubkey.from_string(payer.wallet.tokens)
    wanted = [own, *tokens.values(), *payers.values()]
    found = dict(zip(wanted, await service.chain.accounts(wanted), strict=True))
    obstacles = dict[int, str]()
    for key, one in some.items():
        paid, paying = found[tokens[one.pay_to]], found[payers[one.fee_payer]]
        if paid is None or paid.token_amount is None:
            obstacles[key] = NO_ACCOUNT
        elif paying is None or paying.lamports < _FEE or paying.owner != SYSTEM_PROGRAM:
            obstacles[key] = FACILITATOR_CANNOT_PAY
    held = found[own]
    return obstacles, (None if held is None else held.token_amount) or 0
