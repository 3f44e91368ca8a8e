"""Request and response bodies of organisations."""

from typing import Annotated

from pydantic import BeforeValidator, StrictBool, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import Address, ChangeBody, ReadFrom, ResponseBody, Time, Usdc, example
from app.api.partial_body import PartialBody
from app.chain.identity import Cluster
from app.core.money import parse_sol


def _lamports(value: object) -> int:
    try:
        return parse_sol(value if isinstance(value, str) else "")
    except ValueError as error:
        raise PydanticCustomError("sol", "{reason}", {"reason": str(error)}) from None


_DECIMAL = WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,10}(\.[0-9]{1,9})?$", "examples": ["0.50"]})
#: A decimal string of SOL.
Sol = Annotated[str, _DECIMAL]
#: Lamports from a decimal string, zero allowed.
SolLimit = Annotated[int, BeforeValidator(_lamports), _DECIMAL]


class OrganizationRoles(ResponseBody):
    """The addresses of the keys that act for the organisation. `fee_payer` belongs to the service."""

    authority: Annotated[Address, example("6sfaqKosKfqQuVk3A6hD8Muh2cqqFfSNpc4vHrVJoEHT")]
    """The address of the key that writes policies and roles."""
    operator: Annotated[Address, example("8qbHbw2BbbTHBW1sbeqakYXVKRQM8Ne7pLK7m6CVfeR")]
    """The address of the key that runs the vaults."""
    arbiter: Annotated[Address, example("7Np41oeYqPefeNQEHSv1UDhYrehxin3NStELsSKCT4K2")]
    """The address of the key that decides disputes."""
    verifier: Annotated[Address, example("4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi")]
    """The address of the key that signs proofs of the kind `webhook_callback`."""
    fee_payer: Annotated[Address, example("3h1zGmCwsRJnVk5BuRNMLsPaQu1y2aqXqXDWYCgrp5UG")]
    """The address of the service's key that pays the chain's fees."""


class SolUse(ResponseBody):
    """The SOL that the service's fee payer spends for the organisation, and its limits; null means no limit.

    `spent_today` counts fees, and rent that does not return, since midnight UTC. `fee_payer_days_left` is the number of
    days that the balance above the reserve lasts at the average daily use of all organisations. The average covers up
    to seven days. `fee_payer_days_left` is null if there was no use. It and `fee_payer_balance` are null while the
    chain does not answer.
    """

    sol_per_day: Sol | None
    """The SOL that the transactions of all wallets may cost in a UTC day. Null means no limit."""
    sol_per_wallet_day: Sol | None
    """The SOL that the transactions of each wallet may cost in a UTC day. Null means no limit."""
    sol_held_per_wallet: Sol | None
    """The SOL that the open escrows and allowances of a wallet may hold as rent. Null means no limit."""
    spent_today: Sol
    """The SOL that the transactions of all wallets have cost since midnight UTC."""
    fee_payer_balance: Sol | None
    """The fee payer's SOL. Null while the chain does not answer."""
    fee_payer_reserve: Sol
    """The SOL that payments, escrows and allowances must leave in the fee payer, for freezes and pauses."""
    fee_payer_days_left: Annotated[int | None, example(90)]
    """The days for which the SOL above the reserve lasts at the average use by all organisations over up to seven days.
    Null without any use, or while the chain does not answer.
    """


class Organization(ResponseBody):
    """An organisation, and the chain, program and mint of its money."""

    organization_id: Annotated[str, ReadFrom("org_id"), example("acme")]
    """The organisation's id."""
    organization_address: Annotated[Address, ReadFrom("org"), example("6sfaqKosKfqQuVk3A6hD8Muh2cqqFfSNpc4vHrVJoEHT")]
    """The address of the organisation's account on the chain."""
    reserve_address: Annotated[Address, ReadFrom("reserve"), example("HXtBm8XZbxaTt41uqaKhwUAa6Z1aPyvJdsZVENiWsetg")]
    """The token account for deposits of USDC."""
    reserve_balance: Usdc
    """The balance of the organisation's reserve, in USDC."""
    program_id: Annotated[Address, example("AgentVau1tPo1icyGuardedSpending111111111111")]
    """The address of the program."""
    mint: Annotated[Address, example("EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v")]
    """The address of the USDC mint."""
    cluster: Cluster
    """The chain: `mainnet-beta`, `devnet`, `testnet` or `localnet`."""
    genesis_hash: Annotated[Address, example("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d")]
    """The genesis hash, which identifies the chain."""
    paused: bool
    """True if payments, new escrows, allowances and funding are stopped."""
    authority_attaches: bool
    """True if the operator needs the authority's signature to attach a policy, or a wallet's first budget."""
    restricts_keys: bool
    """True if new API keys need an expiry and allowed addresses."""
    roles: OrganizationRoles
    """The addresses of `authority`, `operator`, `arbiter` and `verifier`, which the program obeys, and of the service's
    `fee_payer`.
    """
    sol: SolUse
    """The fee payer's SOL and its limits. See SolUse."""
    created_at: Time
    """The time of the creation."""


class UpdateOrganization(PartialBody):
    """Body of a change of the organisation's own limits in SOL. A limit that is absent from the body stays the same."""

    sol_per_day: SolLimit | None = None
    """The SOL that the transactions of all wallets may cost in a UTC day, at most the service's limit. Null returns to
    the service's limit.
    """
    sol_per_wallet_day: SolLimit | None = None
    """The SOL that the transactions of each wallet may cost in a UTC day, at most the service's limit. Null returns to
    the service's limit.
    """
    sol_held_per_wallet: SolLimit | None = None
    """The SOL that the open escrows and allowances of a wallet may hold as rent, at most the service's limit. Null
    returns to the service's limit.
    """


class PauseOrganisation(ChangeBody):
    """Body of a request that pauses or unpauses the organisation."""

    paused: StrictBool
    """True to pause the organisation, false to end the pause."""

    @property
    def brakes(self) -> bool:
        """True if the request pauses the organisation."""
        return self.paused


class RestrictKeys(ChangeBody):
    """Body of a request that requires an expiry and allowed addresses of new API keys, or ends this requirement."""

    required: StrictBool
    """True to require `expiresAt` and `allowedAddresses` of new API keys, with no network wider than /8 (IPv4) or /32
    (IPv6).
    """


class RestrictedKeys(ResponseBody):
    """The organisation's setting for new API keys.

    `required` is true if a new key needs an expiry and allowed addresses.
    """

    required: bool
    """True if new API keys need an expiry and allowed addresses."""


class PausedOrganisation(ResponseBody):
    """The pause state of the organisation. `paused` is true while the organisation is paused."""

    paused: bool
    """True if payments, new escrows, allowances and funding are stopped."""
