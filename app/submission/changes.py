"""Submits changes and waits for their confirmation. A change that is not confirmed raises an error."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.offline import refuse_unneeded_offline, require_local_signers
from app.submission.plan import Outcome, Plan, SimulationFailedError
from app.submission.program_errors import OUTDATED, business_error, error_name, require_confirmed

_TRIES = 3


async def earlier_outcome(service: Service, claim: Claim) -> Outcome | None:
    """Return the confirmed outcome of an earlier run of the request, or None if the request may start over.

    Raises ``chain_unavailable`` while the outcome is unknown, and AwaitingSignatureError while the transaction awaits
    an offline signature.
    """
    outcome = await service.submitter.resume(claim)
    if outcome is not None:
        require_confirmed(service.codec, outcome)
    return outcome


async def submit(
    service: Service, plan: Plan, claim: Claim, *, overtakes: bool = False, nonce_account: str | None = None
) -> Outcome:
    """Submit a change and return its confirmed outcome.

    A wallet's change waits until this process has sent the wallet's current payments. Later payments from the wallet in
    this process then wait for the outcome of the change. A change that ``overtakes`` neither waits for payments nor
    makes them wait.

    If the authority signs offline, this uses ``nonce_account``, or a free nonce account, and raises
    AwaitingSignatureError. Raises SimulationFailedError if the simulation fails. Raises the API's error if the change
    failed, is not confirmed yet, or needs no signature by the authority although the request asks for `sign=offline`.
    """
    outcome = await _sent(service, plan, claim, overtakes=overtakes, nonce_account=nonce_account)
    require_confirmed(service.codec, outcome)
    return outcome


async def _sent(
    service: Service, plan: Plan, claim: Claim, *, overtakes: bool = False, nonce_account: str | None = None
) -> Outcome:
    if plan.authority is None:
        refuse_unneeded_offline(claim)
    async with AsyncExitStack() as stack:
        if plan.wallet_id is not None and not overtakes:
            await stack.enter_async_context(service.locks.hold(LockScope.WALLET_SENDING, plan.wallet_id))
        await require_local_signers(service, plan, claim, nonce_account)
        return await service.submitter.submit(plan, claim)


async def submit_current(
    service: Service, make: Callable[[], Awaitable[Plan | None]], claim: Claim, *, overtakes: bool = False
) -> Outcome | None:
    """Like ``submit``, but get the plan from ``make``, and call ``make`` again if another change has outdated the plan.

    Returns None if ``make`` returns None, because there is nothing to change.
    """
    for left in reversed(range(_TRIES)):
        plan = await make()
        if plan is None:
            return None
        try:
            outcome = await _sent(service, plan, claim, overtakes=overtakes)
        except SimulationFailedError as refused:
            if left and error_name(service.codec, refused) in OUTDATED:
                continue
            raise
        if left and outcome.status == "failed" and error_name(service.codec, outcome) in OUTDATED:
            continue
        require_confirmed(service.codec, outcome)
        return outcome
    raise AssertionError


async def carry_out_current(
    service: Service, make: Callable[[], Awaitable[Plan | None]], claim: Claim, *, overtakes: bool = False
) -> Outcome | None:
    """Like ``submit_current``, but raise the API's error if the simulation fails."""
    try:
        return await submit_current(service, make, claim, overtakes=overtakes)
    except SimulationFailedError as refused:
        raise business_error(service.codec, refused) from None


async def carry_out(
    service: Service,
    plan: Plan,
    claim: Claim,
    *,
    instead: Mapping[str, str] | None = None,
    overtakes: bool = False,
    nonce_account: str | None = None,
) -> Outcome:
    """Like ``submit``, but raise the API's error if the simulation fails.

    ``instead`` maps codes of errors to more precise ones.
    """
    try:
        return await submit(service, plan, claim, overtakes=overtakes, nonce_account=nonce_account)
    except SimulationFailedError as refused:
        raise business_error(service.codec, refused, instead=instead) from None
