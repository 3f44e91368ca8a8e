"""Versioned changes. Each is made from the current version, and repeated if another change came first."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

from pydantic.alias_generators import to_camel

from app.access.keyring import Principal
from app.api.operation import Call
from app.api.versions import Precondition
from app.core.errors import ConflictError
from app.submission.chain_state import require_no_gap
from app.submission.changes import earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.offline import authority_of, refuse_unneeded_offline, require_local_signers
from app.submission.plan import Authority, Outcome, Plan, SimulationFailedError
from app.submission.program_errors import business_error, error_name, require_confirmed

Found = TypeVar("Found")
#: Sends a change made from a version, and returns the signature of its transaction, or None if nothing changes.
Send = Callable[[Found], Awaitable[str | None]]
_TRIES = 3


class OutdatedVersionError(Exception):
    """The version that a change was made from is outdated."""


@dataclass(frozen=True, slots=True)
class VersionedChange(ABC, Generic[Found]):
    """A request to change or delete an object, with a precondition on its version.

    ``thing`` names the kind of object. ``outdated`` has the program errors of a transaction that was made from an
    outdated version, and ``preparing`` the plan types of transactions that only prepare a change.
    """

    service: Service
    principal: Principal
    claim: Claim
    object_id: str
    precondition: Precondition

    thing: ClassVar[str]
    outdated: ClassVar[Collection[str]]
    preparing: ClassVar[Collection[str]] = ()

    @classmethod
    def of(cls, call: Call, name: str) -> Self:
        """Return the change that a call asks for. ``name`` is the path parameter with the object's id."""
        precondition = Precondition.of(call.request.headers.get("if-match"))
        return cls(call.service, call.principal, call.claim, call.path(name), precondition)

    @abstractmethod
    async def find(self) -> Found:
        """Return the object in its current version. Raises the error for an unknown one."""

    @abstractmethod
    def check(self, found: Found) -> None:
        """Raise ``version_conflict`` unless the request accepts the version of `found`."""

    async def find_changeable(self) -> Found:
        """Return the object in its current version. Raises an error if no request may change it."""
        return await self.find()

    async def authority(self) -> Authority:
        """Return the organisation's authority.

        Raises ``authority_offline`` if the service lacks its key, unless the request asks for `sign=offline`.
        """
        return await authority_of(self.service, self.principal.org, self.claim)

    async def update(
        self,
        fields: Collection[str],
        details: Collection[str],
        send: Send[Found],
        describe: Callable[[str | None], Awaitable[None]],
    ) -> None:
        """Change the ``fields`` on the chain with ``send``, then the off-chain ``details`` with ``describe``.

        ``describe`` gets the signature of the on-chain change, or None if nothing changed on the chain. Raises
        ``version_conflict`` if the request does not accept the current version.
        """
        # Storing the details is the last step, and it claims the idempotency key without a transaction. If such a claim
        # exists, only the response is missing.
        done = self.claim.repeats and self.claim.attempt is None
        if self.claim.attempt is None:
            await self.find_changeable()
        if details:
            refuse_unneeded_offline(self.claim, field=to_camel(min(details)))
        async with self._lock():
            if done:
                return
            landed = await self._landed()
            if landed is None and fields:
                landed = await self._send(send)
            elif landed is None:
                self.check(await self.find())
            if details:
                await describe(landed)

    async def delete(self, send: Send[Found]) -> str | None:
        """Delete the object with ``send`` and return the signature of the transaction.

        Raises ``version_conflict`` if the request does not accept the current version.
        """
        async with self._lock():
            return await self._landed() or await self._send(send)

    async def submit(self, plan: Plan) -> str | None:
        """Submit a transaction of the change and return its signature once it is confirmed.

        Raises OutdatedVersionError if the transaction fails, in simulation or after landing, with an error in
        ``outdated``. Raises the API's error for any other failure, and AwaitingSignatureError if the authority signs
        offline.
        """
        failure: SimulationFailedError | Outcome
        codec = self.service.codec
        try:
            await require_local_signers(self.service, plan, self.claim)
            failure = await self.service.submitter.submit(plan, self.claim)
            if failure.status != "failed":
                require_confirmed(codec, failure)
                return failure.attempt.signature
        except SimulationFailedError as refused:
            failure = refused
        if error_name(codec, failure) in self.outdated:
            raise OutdatedVersionError
        raise business_error(codec, failure)

    def _lock(self) -> AbstractAsyncContextManager[None]:
        """Return the lock that makes other changes of the object in this process wait."""
        return self.service.locks.hold(LockScope.POLICY, f"{self.principal.org}/{self.object_id}")

    async def _landed(self) -> str | None:
        """Return the signature of the change made by an earlier run of the request, or None if there is none.

        Raises ``chain_unavailable`` while its outcome is unknown.
        """
        outcome = await earlier_outcome(self.service, self.claim)
        return None if outcome is None or outcome.attempt.type in self.preparing else outcome.attempt.signature

    async def _send(self, send: Send[Found]) -> str | None:
        """Make the change from the current version, and start over when ``send`` raises OutdatedVersionError.

        Raises ``version_conflict`` if the request does not accept the version, or if it was outdated at every try.
        """
        for _ in range(_TRIES):
            await require_no_gap(self.service, self.principal.org)
            before = await self.find()
            self.check(before)
            try:
                return await send(before)
            except OutdatedVersionError:
                continue
        raise ConflictError("version_conflict", f"The {self.thing} was changed concurrently by another request. Retry.")
