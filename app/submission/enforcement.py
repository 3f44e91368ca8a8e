"""Puts a brake into force on the chain: sends what the chain lacks, at once and again until nothing can undo it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.logs import is_refused_by
from app.core.errors import ApiError, BusinessError, UnavailableError
from app.database.interface import WRITE_ERRORS
from app.store.attempts import Attempt, pending_changes
from app.submission.brake import SHOWN, EngagedBrake
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Plan, PlanType, SimulationFailedError
from app.submission.program_errors import UNPROVEN, business_error, error_name

_log = structlog.get_logger(__name__)

#: Seconds between two looks at what is in the way.
_PAUSE = 0.1
_NO_SIGNATURE = "The token with the key does not sign it."
_SENT = "It was sent to the chain and is not confirmed yet."
_UNDOING = "An earlier change that would undo it may still take effect."
_STORED = (
    "The service already sends no payments, and repeats the {} until it is in force. Repeat the request to learn when "
    "it is."
)
_IN_MEMORY = (
    "The service already sends no payments, but could not store that: the {} is not certain to be in force, and is "
    "lost if the service stops before it is. Repeat the request until it succeeds."
)
#: Milliseconds in which a transaction that was sent is sent again instead of a new one. A second one does no harm, but
#: one that is lost must not be waited for until it expires.
_RECENT = 5_000


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How one brake is put into force.

    - ``name``: what the request asked for, for messages.
    - ``kind`` and ``lifting``: the types of the transaction that enforces it and of those that undo it.
    - ``missing``: reads the chain and returns the plan of what it lacks; None if the brake is in force there. Raises
      BrakeRefusedError if it never can be.
    - ``fulfilled``: the program's errors which mean that it is in force.
    - ``outdated``: those which mean that the chain changed after it was read.
    """

    name: str
    kind: PlanType
    lifting: PlanType
    missing: Callable[[], Awaitable[Plan | None]]
    fulfilled: frozenset[str] = frozenset()
    outdated: frozenset[str] = frozenset()


class BrakeRefusedError(Exception):
    """The chain refuses to put the brake into force; ``error`` is the answer."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        super().__init__(str(error))


async def enforce(service: Service, hold: EngagedBrake, how: Enforcement, claim: Claim) -> None:
    """Put a request's brake into force and release it.

    Raises the API's error if the chain refuses it; then the brake is released, too. If the chain does not answer, or an
    earlier change may still undo it, the brake stays engaged and ``resume_enforcement`` goes on; that is 503.
    """
    over = False
    try:
        await _until_in_force(service, hold, how, claim)
        over = True
    except BrakeRefusedError as refused:
        over = True
        service.brake.refused(hold, refused.error.code)
        raise refused.error from None
    except (ChainUnavailable, RpcError):
        raise await _unfinished(hold, how, "The chain does not answer.") from None
    except UnavailableError as error:
        reason = _NO_SIGNATURE if error.code == "signer_unavailable" else error.message
        raise await _unfinished(hold, how, reason, code=error.code, fields=error.fields) from None
    except WRITE_ERRORS:
        raise await _unfinished(hold, how, "The database cannot be written.", code="storage_unavailable") from None
    finally:
        if over:
            await service.brake.release(hold)
        else:
            service.brake.leave(hold)


async def resume_enforcement(service: Service, hold: EngagedBrake, how: Enforcement) -> None:
    """Look once at a brake that no request is putting into force, and release it if that is done or refused."""
    try:
        if await _step(service, hold, how, Claim(service.db)) is None:
            await service.brake.lift(hold)
    except BrakeRefusedError as refused:
        _log.error("brake_refused", scope=hold.row.scope, kind=hold.row.kind, error=str(refused))
        service.brake.refused(hold, refused.error.code)
        await service.brake.lift(hold)


async def _until_in_force(service: Service, hold: EngagedBrake, how: Enforcement, claim: Claim) -> None:
    await service.brake.show(hold)
    deadline, last = time.monotonic() + service.settings.confirm_timeout, False
    while (obstacle := await _step(service, hold, how, claim)) is not None:
        if last:
            sent = obstacle.type == how.kind.name
            raise UnavailableError("chain_unavailable", _SENT if sent else _UNDOING, fields={"tx_id": obstacle.tx_id})
        await asyncio.sleep(_PAUSE)
        last = time.monotonic() >= deadline


async def _unfinished(
    hold: EngagedBrake,
    how: Enforcement,
    reason: str,
    *,
    code: str = "chain_unavailable",
    fields: Mapping[str, Any] | None = None,
) -> UnavailableError:
    """Return the answer for a brake that stays engaged; it promises no more than a killed process would keep."""
    rest = _STORED if await hold.is_stored(SHOWN) else _IN_MEMORY
    return UnavailableError(
        code, f"{reason} {rest.format(how.name)}", fields=dict(fields or {}), headers={"Retry-After": "1"}
    )


async def _step(service: Service, hold: EngagedBrake, how: Enforcement, claim: Claim) -> Attempt | None:
    """Send what the chain lacks and return the attempt to wait for; None once nothing can undo the brake."""
    # Read before the chain: the brake lets no new one through, so without one now, the chain's state stays.
    lifting = await _pending(service, hold, how.lifting)
    plan = await how.missing()
    if plan is not None:
        sent = await _send(service, hold, how, plan, claim)
        if sent is not None:
            return sent
    for attempt in lifting:
        await service.submitter.look(attempt)
    return lifting[0] if lifting else None


async def _send(service: Service, hold: EngagedBrake, how: Enforcement, plan: Plan, claim: Claim) -> Attempt | None:
    """Send the plan, or one sent a moment ago again; returns the attempt to wait for, None if it is in force."""
    for attempt in await _pending(service, hold, how.kind):
        if abs(service.clock.seen_ms() - attempt.created_at) < _RECENT:
            outcome = await service.submitter.look(attempt)
            if outcome.status == "pending" and outcome.sendable:
                await service.submitter.wait(await service.submitter.resend(attempt), claim)
                return attempt
    for again in (True, False):
        try:
            outcome = await service.submitter.send_urgently(plan, claim)
        except SimulationFailedError as refused:
            name = error_name(service.codec, refused)
            if name in how.fulfilled:
                return None
            if again and name in how.outdated:
                fresh = await how.missing()
                if fresh is None:
                    return None
                plan = fresh
                continue
            raise _refusal(service, how, refused, name) from None
        return None if outcome.confirmed else outcome.attempt
    raise AssertionError


def _refusal(service: Service, how: Enforcement, refused: SimulationFailedError, name: str | None) -> Exception:
    error = business_error(service.codec, refused)
    if isinstance(error, UnavailableError):
        # It can still succeed: once the fee payer has SOL again, or the service is started with the operator's new key.
        return error
    if name is None or not is_refused_by(refused.simulation.logs, service.codec):
        return UnavailableError("chain_unavailable", UNPROVEN)
    message = f"The program refused the {how.name} ({name or refused}). It is not in force, and payments go on."
    return BrakeRefusedError(BusinessError("transaction_failed", message))


async def _pending(service: Service, hold: EngagedBrake, kind: PlanType) -> list[Attempt]:
    return await service.db.read(lambda conn: pending_changes(conn, hold.row.org, {kind.name}, hold.wallet_id))
