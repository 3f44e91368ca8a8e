"""Organisations as clients read and pause them."""

from typing import Annotated

from pydantic import BaseModel, StrictBool

from app.api.fields import Address, Body, IdempotencyKey, ReadFrom, ResponseBody, Time, Usdc
from app.chain.identity import Cluster


class OrganizationRoles(ResponseBody):
    """The addresses whose keys act for the organisation; `fee_payer` is the service's."""

    authority: Address
    operator: Address
    arbiter: Address
    verifier: Address
    fee_payer: Address


class Organization(ResponseBody):
    """An organisation, and the chain, program and mint that its money is on."""

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
    roles: OrganizationRoles
    created_at: Time


class PauseOrganisation(Body):
    """Body of a pause or of its end."""

    paused: StrictBool
    idempotency_key: IdempotencyKey | None = None


class PausedOrganisation(BaseModel):
    """Whether the organisation is paused."""

    paused: bool
