"""Request and response bodies of organisations."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, StrictBool, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import Address, Body, IdempotencyKey, ReadFrom, ResponseBody, Time, Usdc
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

    authority: Address
    operator: Address
    arbiter: Address
    verifier: Address
    fee_payer: Address


class SolUse(ResponseBody):
    """The SOL that the service's fee payer spends for the organisation, and its limits; null means no limit.

    `spent_today` counts fees, and rent that does not return, since midnight UTC. `fee_payer_days_left` is the number of
    days that the balance above the reserve lasts at the average daily use of all organisations. The average covers up
    to seven days. Without any use, `fee_payer_days_left` is null. While the chain does not answer, it and the balance
    are null.
    """

    sol_per_day: Sol | None
    sol_per_wallet_day: Sol | None
    sol_held_per_wallet: Sol | None
    spent_today: Sol
    fee_payer_balance: Sol | None
    fee_payer_reserve: Sol
    fee_payer_days_left: int | None


class Organization(ResponseBody):
    """An organisation, and the chain, program and mint of its money."""

    organization_id: Annotated[str, ReadFrom("org_id")]
    organization_address: Annotated[Address, ReadFrom("org")]
    reserve_address: Annotated[Address, ReadFrom("reserve")]
    reserve_balance: Usdc
    program_id: Address
    mint: Address
    cluster: Cluster
    genesis_hash: Address
    paused: bool
    authority_attaches: bool
    restricts_keys: bool
    roles: OrganizationRoles
    sol: SolUse
    created_at: Time


class UpdateOrganization(PartialBody):
    """Body of the organisation's own limits in SOL. Null returns to the service's limit. Absent ones stay."""

    sol_per_day: SolLimit | None = None
    sol_per_wallet_day: SolLimit | None = None
    sol_held_per_wallet: SolLimit | None = None
    idempotency_key: IdempotencyKey | None = None


class PauseOrganisation(Body):
    """Body of a request that pauses or unpauses the organisation."""

    paused: StrictBool
    idempotency_key: IdempotencyKey | None = None

    @property
    def brakes(self) -> bool:
        """True if the request pauses the organisation."""
        return self.paused


class RestrictKeys(Body):
    """Body of the requirement that new API keys have an end and allowed addresses."""

    required: StrictBool
    idempotency_key: IdempotencyKey | None = None


class RestrictedKeys(BaseModel):
    """The requirement. `required` is true if new API keys need an end and allowed addresses."""

    required: bool


class PausedOrganisation(BaseModel):
    """The pause state of the organisation. `paused` is true while the organisation is paused."""

    paused: bool
