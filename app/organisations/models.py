"""Organisations as clients read and pause them."""

from typing import Annotated

from pydantic import BaseModel, StrictBool, WithJsonSchema

from app.api.fields import Answer, Body, IdempotencyKey, Time, Usdc
from app.chain.identity import Cluster

_Address = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$"})]


class OrganizationRoles(Answer):
    """The addresses whose keys act for the organisation; `fee_payer` is the service's."""

    authority: _Address
    operator: _Address
    arbiter: _Address
    verifier: _Address
    fee_payer: _Address


class Organization(Answer):
    """An organisation, and the chain, program and mint that its money is on."""

    organization_id: str
    organization_address: _Address
    reserve_address: _Address
    reserve_balance: Usdc
    program_id: _Address
    mint: _Address
    cluster: Cluster
    genesis_hash: _Address
    paused: bool
    roles: OrganizationRoles
    created_at: Time


class PauseOrganisation(Body):
    """Body of a pause or of its end."""

    paused: StrictBool
    idempotency_key: IdempotencyKey | None = None


class PausedOrganisation(BaseModel):
    """Whether the organisation is paused."""

    paused: bool
