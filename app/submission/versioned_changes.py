"""Versioned changes: each is made from the current version, and made again if that version is outdated."""

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeVar

from app.access.keyring import Principal
from app.core.errors import ConflictError
from app.submission.chain_state import require_no_gap
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.offline import require_local_signers
from app.submission.plan import Outcome, Plan, SimulationFailedError
from app.submission.program_errors import business_error, error_name, require_confirmed

Found = TypeVar("Found")
Landed = TypeVar("Landed")
_TRIES = 3


class OutdatedVersionError(Exception):
    """The version that a change was made from is outdated."""


class VersionedChange(Protocol[Found]):
    """A request to change a versioned object."""

    @property
    def service(self) -> Service:
        """The service."""

    @property
    def principal(self) -> Principal:
        """The principal of the request."""

    async def find(self) -> Found:
        """Return the object to change, in its current version."""

    def check(self, found: Found) -> None:
        """Raise ``version_conflict`` unless the request accepts the version of `found`."""


def concurrent_change(thing: str) -> ConflictError:
    """Return the error for an object that other requests keep changing."""
    return ConflictError("version_conflict", f"The {thing} was changed concurrently by another request. Retry.")


async def send_versioned(
    request: VersionedChange[Found], thing: str, send: Callable[[Found], Awaitable[Landed]]
) -> Landed:
    """Make a change from the current version and send it. Start over when ``send`` raises OutdatedVersionError.

    Raises ``version_conflict`` if the request does not accept the version, or if the version was outdated at every try.
    """
    for _ in range(_TRIES):
        await require_no_gap(request.service, request.principal.org)
        before = await request.find()
        request.check(before)
        try:
            return await send(before)
        except OutdatedVersionError:
            continue
    raise concurrent_change(thing)


async def submit_versioned(service: Service, plan: Plan, claim: Claim, *, outdated: Collection[str]) -> Outcome:
    """Submit a change and return its confirmed outcome.

    Raises OutdatedVersionError if the change fails, in simulation or after landing, with an error in ``outdated``.
    Raises the API's error for any other failure, and AwaitingSignatureError if the authority signs offline.
    """
    failure: SimulationFailedError | Outcome
    try:
        await require_local_signers(service, plan, claim)
        failure = await service.submitter.submit(plan, claim)
        if failure.status != "failed":
            require_confirmed(service.codec, failure)
            return failure
    except SimulationFailedError as refused:
        failure = refused
    if error_name(service.codec, failure) in outdated:
        raise OutdatedVersionError
    raise business_error(service.codec, failure)
