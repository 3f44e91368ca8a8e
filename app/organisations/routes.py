"""Operations on the organisation."""

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.operation import Call, operation
from app.organisations import pausing
from app.organisations import service as organisations
from app.organisations.models import (
    Organization,
    PausedOrganisation,
    PauseOrganisation,
    RestrictedKeys,
    RestrictKeys,
    UpdateOrganization,
)


@operation("GET /v1/organization", roles=READERS)
async def get_organization(call: Call) -> Organization:
    """Get the organisation.

    To deposit, send USDC of `mint` to the token account `reserve_address`. `roles` are the addresses that the program
    obeys, and the service's fee payer.
    """
    return await organisations.show(call.service, call.principal)


@operation("PATCH /v1/organization", roles=ADMINS)
async def update_organization(call: Call, body: UpdateOrganization) -> Organization:
    """Limit the SOL that the service's fee payer spends for the organisation.

    The limits cannot exceed the service's own. A limit of `null` returns to the service's limit. Above a limit,
    payments, escrows and allowances get `429 sol_limit_reached`. Withdrawals, freezes, pauses and settlements are not
    limited.
    """
    return await organisations.limit_sol(call.service, call.principal, call.claim, body)


@operation("POST /v1/organization/pause", roles=OPERATORS, errors=("transaction_failed",), brakes=True, signable=True)
async def pause_organisation(call: Call, body: PauseOrganisation) -> PausedOrganisation:
    """Pause the organisation.

    A pause overtakes waiting payments: a payment that has not been sent yet is never sent. The pause stops payments,
    new escrows, new allowances and funding for all wallets, but never withdrawals and settlements. Operators and admins
    may pause. With `paused` = `false`, an admin ends the pause.
    """
    await pausing.set_paused(call.service, call.principal, call.claim, paused=body.paused)
    return PausedOrganisation(paused=body.paused)


@operation("PUT /v1/organization/key-restrictions", roles=ADMINS)
async def restrict_keys(call: Call, body: RestrictKeys) -> RestrictedKeys:
    """Require an expiry and allowed addresses for new API keys.

    With `required` = `true`, `expiresAt` and `allowedAddresses` are required for new keys. Existing keys keep working.
    `GET /v1/keys` with `restricted` = `false` lists the keys that lack an expiry or allowed addresses.
    """
    await organisations.restrict_keys(call.principal, call.claim, required=body.required)
    return RestrictedKeys(required=body.required)
