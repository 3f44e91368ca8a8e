"""Steps of escrows after their creation: the completion by a proof, a dispute, its withdrawal, the arbiter's decision.

The program judges each step in a simulation. The service checks the escrow's status and explains the program's
refusals.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import decode_token
from app.access.keyring import Principal
from app.api.fields import optional
from app.api.operation import Call
from app.chain.escrow_instructions import OpenEscrow
from app.core.errors import ApiError, AuthenticationError, BusinessError, RequestError, UnavailableError
from app.core.money import format_usdc
from app.core.signers import Signer
from app.escrows import _proofs
from app.escrows.models import CompleteEscrow, DisputeEscrow, Escrow, ResolveDispute, WithdrawDispute
from app.escrows.service import LOCK, find, parse_hash, shown
from app.payments.token_accounts import lacks_token_account
from app.store.attempts import Attempt
from app.store.escrows import DISPUTED, LOCKED, OPEN, PENDING, EscrowRecord, remember_dispute, remember_output
from app.submission.chain_state import require_no_gap, with_budget
from app.submission.changes import earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import Failure, Hook, Plan, PlanType, SimulationFailedError, nothing
from app.submission.program_errors import business_error, error_name, is_known, require_confirmed
from app.wallets import service as wallets

_COMPLETE, _RESOLVE = (PlanType(name, prepaid=True) for name in ("complete_escrow", "resolve_dispute"))
_DISPUTE = PlanType("dispute_escrow")
_WITHDRAW = PlanType("withdraw_dispute", resent=False)
PLAN_TYPES = (LOCK, _COMPLETE, _DISPUTE, _WITHDRAW, _RESOLVE)
_NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class _Party:
    """The acting party: its wallet, if any, and the signing session. Without a session, the operator signs."""

    wallet_id: str | None
    session: Keypair | None

    def key(self, service: Service) -> Signer:
        return self.session or service.signers.operator

    def explain(self, service: Service, failure: Failure) -> ApiError | None:
        """Return the error for a session key that the chain does not accept, or no longer accepts.

        Returns None for any other failure.
        """
        if self.session is None:
            return None
        return _unauthorised(service, AuthenticationError("session_token_invalid"), failure)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of an escrow: its requester, the statuses that permit it, and the explanation of its refusals."""

    service: Service
    principal: Principal
    claim: Claim
    allowed: Sequence[str]
    explain: Callable[[Failure], ApiError | None]

    async def take(self, escrow: EscrowRecord, plan_of: Callable[[EscrowRecord], Awaitable[Plan]]) -> Escrow:
        """Send the plan and return the escrow in its new state."""
        service = self.service
        if escrow.status in {PENDING, DISPUTED} and escrow.status not in self.allowed:
            escrow = await self._caught_up(escrow)
        self._check(escrow)
        plan = await plan_of(escrow)
        try:
            async with service.locks.hold(LockScope.WALLET_SENDING, escrow.wallet_id):
                outcome = await service.submitter.send(plan, self.claim)
            outcome = await service.submitter.wait(outcome, self.claim)
        except SimulationFailedError as refused:
            raise await self._error(escrow, refused) from None
        if outcome.status == "failed":
            raise await self._error(escrow, outcome)
        require_confirmed(service.codec, outcome)
        return shown(await find(service, self.principal, escrow.escrow_id), self.principal)

    def _check(self, escrow: EscrowRecord) -> None:
        """Raise the reason if the escrow's status does not permit the step yet, or no longer permits it."""
        if escrow.status in self.allowed:
            return
        if escrow.status == PENDING:
            raise UnavailableError(
                "chain_unavailable", "The escrow is not confirmed yet. Retry.", headers={"Retry-After": "1"}
            )
        reason = "it waits for its arbiter" if escrow.status == DISPUTED else "it is settled"
        raise BusinessError("escrow_already_settled", f"The escrow's status is {escrow.status}: {reason}.")

    async def _caught_up(self, escrow: EscrowRecord) -> EscrowRecord:
        """Return the escrow in its current on-chain state."""
        await require_no_gap(self.service, escrow.vault)
        return await find(self.service, self.principal, escrow.escrow_id)

    async def _error(self, escrow: EscrowRecord, failure: Failure) -> ApiError:
        explained = self.explain(failure)
        if explained is not None:
            return explained
        if not is_known(error_name(self.service.codec, failure)):
            # A settled escrow's account is gone. The program cannot tell it from an account that never existed.
            try:
                self._check(await self._caught_up(escrow))
            except BusinessError as settled:
                return settled
        return business_error(self.service.codec, failure)


async def _taken(service: Service, principal: Principal, claim: Claim, identifier: str) -> Escrow | None:
    """Return the escrow if an earlier run of the request already took the step, or None if the request starts over.

    Call this before any check that could refuse the step. Raises ``chain_unavailable`` while the outcome is unknown.
    """
    if await earlier_outcome(service, claim) is None:
        return None
    return shown(await find(service, principal, identifier), principal)


async def complete(call: Call, identifier: str, body: CompleteEscrow) -> Escrow:
    """Release an escrow with a proof.

    Raises ``invalid_proof``, ``escrow_expired``, ``escrow_already_settled``, and ``invalid_recipient`` if the receiver
    has no token account and the wallet may not open another one.
    """
    service, principal, claim = call.service, call.principal, call.claim
    if (taken := await _taken(service, principal, claim, identifier)) is not None:
        return taken
    found = await find(service, principal, identifier)
    party = await _party(call, found)
    proof = _proofs.parse(body)

    async def plan(escrow: EscrowRecord) -> Plan:
        # The program accepts a signed proof from any sender, so the sender does not sign.
        key = party.key(service) if proof.signature is None else None
        completion = service.instructions(escrow.org).complete_escrow(
            await with_budget(service, _accounts(escrow)),
            payer=service.signers.fee_payer_address,
            kind=proof.kind,
            output_hash=proof.output_hash,
            signer=None if key is None else key.pubkey(),
        )
        front = await _proofs.instructions(service, escrow, proof)
        opens = escrow.to_wallet is None and await lacks_token_account(
            service, escrow.wallet_id, Pubkey.from_string(escrow.receiver)
        )

        def store(conn: Connection, _attempt: Attempt) -> None:
            if body.output_url is not None:
                remember_output(conn, escrow.escrow_id, proof.output_hash.hex(), body.output_url)

        signers = [] if key is None else [key]
        return replace(_plan(escrow, _COMPLETE, [*front, completion], signers, store), opens_account=opens)

    def explain(failure: Failure) -> ApiError | None:
        return _proofs.explain(service, failure, found, proof) or party.explain(service, failure)

    return await _Step(service, principal, claim, (LOCKED,), explain).take(found, plan)


async def dispute(call: Call, identifier: str, body: DisputeEscrow) -> Escrow:
    """Dispute an escrow, which stops its clock. Either side may do so once, before the deadline.

    The dispute ends with the arbiter's decision, a refund after 30 days, or its withdrawal. A withdrawal moves the
    deadline by the time that the dispute lasted. An agent acts for its wallet. An operator's key acts for the named
    side. If no side is named, it acts for the session token's wallet or, without a session token, for the paying side.
    Without a session token, the operator signs, and the program counts the dispute as the paying side's, even if the
    other side is named.

    Raises ``escrow_expired``, ``escrow_already_settled`` and ``dispute_raised_before``.
    """
    service, principal, claim = call.service, call.principal, call.claim
    if (taken := await _taken(service, principal, claim, identifier)) is not None:
        return taken
    found = await find(service, principal, identifier)
    party = await _party(call, found, body.wallet_id)
    side, key = party.wallet_id or found.wallet_id, party.key(service)

    async def plan(escrow: EscrowRecord) -> Plan:
        instruction = service.instructions(escrow.org).dispute_escrow(
            _accounts(escrow),
            signer=key.pubkey(),
            reason_hash=hashlib.sha256(body.reason.encode()).digest(),
            evidence_hash=optional(parse_hash, body.evidence) or _NO_HASH,
        )

        def store(conn: Connection, _attempt: Attempt) -> None:
            remember_dispute(conn, escrow.escrow_id, body.reason, side)

        return _plan(escrow, _DISPUTE, [instruction], [key], store)

    return await _Step(service, principal, claim, (LOCKED,), partial(party.explain, service)).take(found, plan)


async def withdraw(call: Call, identifier: str, body: WithdrawDispute) -> Escrow:
    """Withdraw a dispute, so that the escrow's deadline continues to run.

    The party that raised the dispute may withdraw it. The operator may withdraw it for a wallet's side.

    Raises ``escrow_not_disputed`` or ``escrow_already_settled`` if the escrow's status does not permit it.
    """
    service, principal, claim = call.service, call.principal, call.claim
    if (taken := await _taken(service, principal, claim, identifier)) is not None:
        return taken
    found = await find(service, principal, identifier)
    party = await _party(call, found, body.wallet_id)
    key = party.key(service)

    async def plan(escrow: EscrowRecord) -> Plan:
        if escrow.status == LOCKED:
            raise BusinessError("escrow_not_disputed")
        instruction = service.instructions(escrow.org).withdraw_dispute(
            _accounts(escrow), signer=key.pubkey(), expected_sequence=escrow.dispute_sequence or 0
        )
        return _plan(escrow, _WITHDRAW, [instruction], [key])

    says = "Only the party that raised the dispute, or that side's operator, may withdraw it."
    explain = partial(_unauthorised, service, AuthenticationError("insufficient_permissions", says))
    return await _Step(service, principal, claim, OPEN, explain).take(found, plan)


async def resolve(
    service: Service, principal: Principal, claim: Claim, identifier: str, body: ResolveDispute
) -> Escrow:
    """Divide a disputed escrow by the arbiter's decision. The arbiter's key signs.

    Raises ``escrow_not_disputed`` or ``escrow_already_settled`` if the escrow's status permits no decision,
    ``invalid_amount`` for an impossible split, and ``authority_offline`` if the service lacks the arbiter's key.
    """
    if (taken := await _taken(service, principal, claim, identifier)) is not None:
        return taken
    found = await find(service, principal, identifier)
    arbiter = service.signers.require_arbiter()
    released = share_of(found, body)

    async def plan(escrow: EscrowRecord) -> Plan:
        instruction = service.instructions(escrow.org).resolve_dispute(
            await with_budget(service, _accounts(escrow)),
            payer=service.signers.fee_payer_address,
            arbiter=arbiter.pubkey(),
            released=released,
            expected_sequence=escrow.dispute_sequence or 0,
        )
        entry = principal.entry(
            "escrow.resolve", escrow.escrow_id, decision=body.decision, released_amount=format_usdc(released)
        )
        return replace(_plan(escrow, _RESOLVE, [instruction], [arbiter]), entry=entry)

    offline = UnavailableError("authority_offline", "This service does not have the key of the escrow's arbiter.")
    explain = partial(_unauthorised, service, offline)
    return await _Step(service, principal, claim, OPEN, explain).take(found, plan)


def share_of(found: EscrowRecord, body: ResolveDispute) -> int:
    """Return the receiver's share under a decision. The rest is refunded.

    Raises ``invalid_amount`` if the receiver's share of a split is not less than the escrow's amount.
    """
    released = {"release": found.amount, "refund": 0}.get(body.decision, body.released_amount or 0)
    if body.decision == "split" and released >= found.amount:
        raise RequestError("invalid_amount", "releasedAmount: must be less than the escrow's amount.")
    return released


async def _party(call: Call, found: EscrowRecord, named: str | None = None) -> _Party:
    """Return the acting party: the agent, or for other roles the wallet of the session token, else the operator.

    Raises ``invalid_request`` for a wallet on neither side, ``session_token_invalid`` and ``session_token_expired``.
    """
    if named not in (None, found.wallet_id, found.to_wallet):
        raise RequestError("invalid_request", "walletId: must be the paying or the receiving wallet.")
    token, is_agent = call.session_token, call.principal.role == "agent"
    named = call.principal.wallet_id or named
    if token is None and not is_agent:
        return _Party(named, None)
    for side in (named,) if named else (found.wallet_id, found.to_wallet):
        if side is None:
            continue
        wallet = await wallets.find(call.service, found.org, side)
        known = token is not None and str(decode_token(token).pubkey()) == wallet.session_authority
        if known or is_agent:
            return _Party(side, call.session(wallet))
    raise AuthenticationError("session_token_invalid")


def _unauthorised(service: Service, error: ApiError, failure: Failure) -> ApiError | None:
    """Return the error if the program refused the signer, else None."""
    return error if error_name(service.codec, failure) == "Unauthorized" else None


def _accounts(found: EscrowRecord) -> OpenEscrow:
    """Return an escrow's accounts, without a budget's account, which `with_budget` adds."""
    return OpenEscrow(*map(Pubkey.from_string, (found.address, found.vault, found.receiver, found.payer)))


def _plan(
    escrow: EscrowRecord,
    kind: PlanType,
    instructions: Sequence[Instruction],
    signers: Sequence[Signer],
    on_store: Hook = nothing,
) -> Plan:
    return Plan(
        org=escrow.org,
        type=kind,
        instructions=instructions,
        signers=signers,
        wallet_id=escrow.wallet_id,
        recipient=escrow.escrow_id,
        amount=escrow.amount,
        on_store=on_store,
    )
