"""Request and response bodies of organisations."""

from typing import Annotated

from pydantic import BaseModel, StrictBool

from app.api.fields import Address, Body, IdempotencyKey, ReadFrom, ResponseBody, Time, Usdc
from app.chain.identity import Cluster


class OrganizationRoles(ResponseBody):
    """The addresses of the keys that act for the organisation. `fee_payer` belongs to the service."""

    authority: Address
    operator: Address
    arbiter: Address
    verifier: Address
    fee_payer: Address


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
    created_at: Time


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
