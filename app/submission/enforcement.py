"""Enforces a brake on the chain: sends its transaction immediately, and again until no earlier change can undo it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.chain.logs import is_refused_by
from app.core.errors import ApiError, BusinessError, UnavailableError
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import iso_ms
from app.database.interface import WRITE_ERRORS
from app.store.attempts import Attempt, pending_changes
from app.store.feed import append_event
from app.submission.brake import SHOWN, EngagedBrake
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import Plan, PlanType, SimulationFailedError
from app.submission.program_errors import UNPROVEN, business_error, error_name

_log = structlog.get_logger(__name__)

#: Type of the event for a brake that a repeated request has engaged again after it was lifted.
REPEATED = "alert.brake_repeated"
#: Seconds between two steps while a transaction has no outcome yet.
_PAUSE = 0.1
_NO_SIGNATURE = "The hardware token that holds the signing key is unavailable."
_SENT = "The transaction was sent to the chain but has not taken effect yet."
_UNDOING = "An earlier change may still take effect on the chain and undo this one."
_STORED = (
    "The service already blocks the affected payments and retries the {} until the chain enforces it. Repeat the "
    "request to check whether it is in force."
)
_IN_MEMORY = (
    "The service already blocks the affected payments but could not store the {}, which is lost if the service stops "
    "before the chain enforces it. Repeat the request until it succeeds."
)
#: Milliseconds during which a sent transaction is resent instead of replaced by a new one. A second transaction does no
#: harm, but a brake must not wait until a lost transaction expires.
_RECENT = 5_000


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Describes how to enforce one brake on the chain.

    - ``name``: the requested action, such as "freeze", for messages.
    - ``kind`` and ``lifting``: the type of the transaction that enforces the brake, and the type that undoes it.
    - ``missing``: reads the chain and returns the plan of the transaction that the brake still needs, or None if the
      brake is in force there.
      Raises BrakeRefusedError if it can never be in force.
    - ``fulfilled``: program errors that mean the brake is in force already.
    """

    name: str
    kind: PlanType
    lifting: PlanType
    missing: Callable[[], Awaitable[Plan | None]]
    fulfilled: frozenset[str] = frozenset()


class BrakeRefusedError(Exception):
    """The chain refuses to enforce the brake; ``error`` is the response to the client."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        super().__init__(str(error))


async def enforce(service: Service, hold: EngagedBrake, how: Enforcement, claim: Claim) -> None:
    """Enforce a request's brake on the chain and release it.

    Raises the API's error if the chain refuses the brake, which is then released as well. Raises a 503 error if the
    brake may not be in force in time: the chain does not answer or confirm, an earlier change may still undo the brake,
    a key cannot sign, the fee payer lacks SOL, or the database cannot be written to. The brake then stays engaged, and
    ``resume_enforcement`` continues with it.
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
        raise await _unfinished(hold, how, "The Solana node does not answer or returned an error.") from None
    except UnavailableError as error:
        reason = _NO_SIGNATURE if error.code == "signer_unavailable" else error.message
        raise await _unfinished(hold, how, reason, code=error.code, fields=error.fields) from None
    except WRITE_ERRORS:
        raise await _unfinished(hold, how, "The database cannot be written to.", code="storage_unavailable") from None
    finally:
        if over:
            await service.brake.release(hold)
        else:
            service.brake.leave(hold)


async def resume_enforcement(service: Service, hold: EngagedBrake, how: Enforcement) -> None:
    """Take one step to enforce a brake without a request. Lift the brake if the chain enforces or refuses it."""
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
    """Return the error for a brake that stays engaged. Its message promises lasting retries only if a row is stored."""
    rest = _STORED if await hold.is_stored(SHOWN) else _IN_MEMORY
    return UnavailableError(
        code, f"{reason} {rest.format(how.name)}", fields=dict(fields or {}), headers={"Retry-After": "1"}
    )


async def _step(service: Service, hold: EngagedBrake, how: Enforcement, claim: Claim) -> Attempt | None:
    """Send the brake's transaction if the chain lacks it. Return the attempt to wait for.

    Returns None once the chain enforces the brake and no earlier unfreeze or resume can land.
    """
    # Look for pending changes that lift the brake before reading the chain. The brake blocks new ones: if none is
    # pending now, none can change the state that is read next.
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
    """Send the plan, or resend a recent attempt. Return the attempt to wait for, or None if the brake is in force."""
    for attempt in await _pending(service, hold, how.kind):
        if abs(service.clock.seen_ms() - attempt.created_at) < _RECENT:
            outcome = await service.submitter.look(attempt)
            if outcome.status == "pending" and outcome.sendable:
                await service.submitter.wait(await service.submitter.resend(attempt), claim)
                return attempt
    for again in (True, False):
        if claim.first_called_at is not None:
            plan = replace(plan, on_store=partial(_report_repeated, hold, claim.first_called_at))
        try:
            outcome = await service.submitter.send_urgently(plan, claim)
        except SimulationFailedError as refused:
            name = error_name(service.codec, refused)
            if name in how.fulfilled:
                return None
            if again and refused.lacks_account:
                fresh = await how.missing()
                if fresh is None:
                    return None
                plan = fresh
                continue
            raise _refusal(service, how, refused, name) from None
        return None if outcome.confirmed else outcome.attempt
    raise AssertionError


def _report_repeated(hold: EngagedBrake, first_called_at: int, conn: Connection, attempt: Attempt) -> None:
    """Report that a request was repeated under its idempotency key after its brake had been lifted."""
    row = hold.row
    append_event(
        conn,
        event_id=derived_id(EVENT_PREFIX, attempt.tx_id, REPEATED),
        org=row.org,
        type=REPEATED,
        timestamp=attempt.created_at,
        wallet_id=hold.wallet_id,
        summary=f"A {row.kind} had been lifted and was made again by a repeated request",
        payload={"wallet_id": hold.wallet_id, "brake": row.kind, "first_called_at": iso_ms(first_called_at)},
    )


def _refusal(service: Service, how: Enforcement, refused: SimulationFailedError, name: str | None) -> Exception:
    error = business_error(service.codec, refused)
    if isinstance(error, UnavailableError):
        # A later try can succeed, once the fee payer has SOL again or the service is started with the operator's new
        # key.
        return error
    if name is None or not is_refused_by(refused.simulation.logs, service.codec):
        return UnavailableError("chain_unavailable", UNPROVEN)
    message = f"The program refused the {how.name} ({name or refused}). It is not in force, and payments continue."
    return BrakeRefusedError(BusinessError("transaction_failed", message))


async def _pending(service: Service, hold: EngagedBrake, kind: PlanType) -> list[Attempt]:
    return await service.db.read(lambda conn: pending_changes(conn, hold.row.org, {kind.name}, hold.wallet_id))
