"""How escrows end: completed by a proof, disputed by a side, decided by the arbiter.

The program judges each in a rehearsal; what it refuses is explained, not judged again.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import decode_token, session_key
from app.access.keyring import Principal
from app.chain.escrow_instructions import OpenEscrow
from app.core.errors import ApiError, AuthenticationError, BusinessError, RequestError, UnavailableError
from app.escrows import proofs as escrow_proofs
from app.escrows.models import CompleteEscrow, DisputeEscrow, Escrow, ResolveDispute
from app.escrows.service import LOCK, find, hash_of, shown
from app.payments.token_accounts import count_creation, may_create
from app.store.attempts import Attempt
from app.store.escrows import DISPUTED, LOCKED, OPEN, PENDING, EscrowRecord, remember_dispute, remember_output
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.plan import Hook, Outcome, Plan, PlanType, RefusedError, nothing
from app.submission.refusals import business_error, error_name, is_known, require_confirmed
from app.wallets import service as wallets

_COMPLETE, _DISPUTE, _RESOLVE = PlanType("complete_escrow"), PlanType("dispute_escrow"), PlanType("resolve_dispute")
PLAN_TYPES = (LOCK, _COMPLETE, _DISPUTE, _RESOLVE)
_NO_HASH = bytes(32)

Explain = Callable[[RefusedError | Outcome], ApiError | None]


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Who acts: for which wallet, if for one, and the session's key that signs; without one the operator does."""

    wallet_id: str | None
    session: Keypair | None

    def key(self, service: Service) -> Keypair:
        return self.session or service.signers.operator


@dataclass(frozen=True, slots=True)
class _EscrowStep:
    """A change of an escrow: its instructions, who signs, what is written beside, and how its refusals read."""

    type: PlanType
    instructions: Sequence[Instruction]
    signers: Sequence[Keypair]
    explain: Explain
    on_store: Hook = nothing


async def complete(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, identifier: str, body: CompleteEscrow, token: str | None
) -> Escrow:
    """Release an escrow upon a proof.

    Raises ``invalid_proof``, ``escrow_expired``, ``escrow_already_settled``, and ``invalid_recipient`` where the
    receiver has no token account and the wallet has used up what may be opened for it.
    """
    found = await find(service, principal, identifier)
    speaker = await _speaker(service, principal, found, token)
    proof = escrow_proofs.parse(body)

    async def step(current: EscrowRecord) -> _EscrowStep:
        # Who brings a signature does not matter to the program, so it is not asked to check that.
        party = speaker.key(service) if proof.signature is None else None
        completion = service.instructions(current.org).complete_escrow(
            _open(current),
            payer=service.signers.fee_payer_address,
            kind=proof.kind,
            output_hash=proof.output_hash,
            signer=None if party is None else party.pubkey(),
        )
        front = await escrow_proofs.instructions(service, current, proof)
        url, output = body.output_url, proof.output_hash.hex()
        opens = current.to_wallet is None and await may_create(
            service, current.wallet_id, Pubkey.from_string(current.receiver)
        )

        def record(conn: Connection, _attempt: Attempt) -> None:
            if url is not None:
                remember_output(conn, current.escrow_id, output, url)
            if opens:
                count_creation(conn, current.wallet_id)

        return _EscrowStep(
            _COMPLETE,
            [*front, completion],
            [] if party is None else [party],
            lambda failure: (
                escrow_proofs.explain(service, failure, current, proof) or _explain_session(service, failure, speaker)
            ),
            record,
        )

    return await _change(service, principal, claim, found, (LOCKED,), step)


async def dispute(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, identifier: str, body: DisputeEscrow, token: str | None
) -> Escrow:
    """Stop an escrow until the arbiter decides; by either side, before the deadline.

    An agent speaks for its wallet, an operator's key for the side that it names, else for the one that pays. Raises
    ``escrow_expired`` and ``escrow_already_settled``.
    """
    found = await find(service, principal, identifier)
    if body.wallet_id not in (None, found.wallet_id, found.to_wallet):
        raise RequestError("invalid_request", "walletId: is neither side's wallet.")
    speaker = await _speaker(service, principal, found, token, body.wallet_id)
    side = speaker.wallet_id or found.wallet_id
    reason_hash = hashlib.sha256(body.reason.encode()).digest()
    evidence_hash = _NO_HASH if body.evidence is None else hash_of(body.evidence)

    async def step(current: EscrowRecord) -> _EscrowStep:
        key = speaker.key(service)
        instruction = service.instructions(current.org).dispute_escrow(
            _open(current), signer=key.pubkey(), reason_hash=reason_hash, evidence_hash=evidence_hash
        )
        return _EscrowStep(
            _DISPUTE,
            [instruction],
            [key],
            lambda failure: _explain_session(service, failure, speaker),
            lambda conn, _attempt: remember_dispute(conn, current.escrow_id, body.reason, side),
        )

    return await _change(service, principal, claim, found, (LOCKED,), step)


async def resolve(
    service: Service, principal: Principal, claim: Claim, identifier: str, body: ResolveDispute
) -> Escrow:
    """Divide a disputed escrow as the arbiter decides, whose key signs.

    Raises ``escrow_not_disputed``, ``escrow_already_settled``, ``invalid_amount`` and ``authority_offline``.
    """
    found = await find(service, principal, identifier)
    arbiter = service.signers.require_arbiter()
    released = {"release": found.amount, "refund": 0}.get(body.decision, body.released_amount or 0)
    if body.decision == "split" and released >= found.amount:
        raise RequestError("invalid_amount", "releasedAmount: a split releases less than the escrow's amount.")

    def explain(failure: RefusedError | Outcome) -> ApiError | None:
        if error_name(service.codec, failure) != "Unauthorized":
            return None
        return UnavailableError("authority_offline", "The escrow's arbiter is another key than this service's.")

    async def step(current: EscrowRecord) -> _EscrowStep:
        instruction = service.instructions(current.org).resolve_dispute(
            _open(current),
            payer=service.signers.fee_payer_address,
            arbiter=arbiter.pubkey(),
            released=released,
        )
        return _EscrowStep(_RESOLVE, [instruction], [arbiter], explain)

    return await _change(service, principal, claim, found, OPEN, step)


async def _change(  # noqa: PLR0917
    service: Service,
    principal: Principal,
    claim: Claim,
    found: EscrowRecord,
    allowed: Sequence[str],
    step_for: Callable[[EscrowRecord], Awaitable[_EscrowStep]],
) -> Escrow:
    """Do one step of an escrow that is in one of the ``allowed`` statuses, and answer how it stands then."""
    outcome = await service.submitter.resume(claim)
    if outcome is None:
        found = await _settleable(service, principal, found, allowed)
        step = await step_for(found)
        plan = Plan(
            org=found.org,
            type=step.type,
            instructions=step.instructions,
            signers=step.signers,
            wallet_id=found.wallet_id,
            recipient=found.escrow_id,
            amount=found.amount,
            on_store=step.on_store,
        )
        try:
            async with service.locks.hold(LockScope.WALLET_SENDING, found.wallet_id):
                outcome = await service.submitter.send(plan, claim)
            outcome = await service.submitter.wait(outcome, claim)
        except RefusedError as refused:
            raise await _error(service, principal, found, refused, allowed, step.explain) from None
        if outcome.status == "failed":
            raise await _error(service, principal, found, outcome, allowed, step.explain)
    require_confirmed(service.codec, outcome)
    return shown(await find(service, principal, found.escrow_id), principal)


async def _settleable(
    service: Service, principal: Principal, found: EscrowRecord, allowed: Sequence[str]
) -> EscrowRecord:
    """Return the escrow, or the error that says why nothing can be done with it any more, or yet."""
    if found.status == PENDING:
        found = await _again(service, principal, found)
    _require(found, allowed)
    return found


def _require(found: EscrowRecord, allowed: Sequence[str]) -> None:
    if found.status in allowed:
        return
    if found.status == PENDING:
        raise UnavailableError("chain_unavailable", "The escrow is not confirmed yet.", headers={"Retry-After": "1"})
    reason = "it waits for its arbiter" if found.status == DISPUTED else "it is settled"
    raise BusinessError("escrow_already_settled", f"The escrow's status is {found.status}: {reason}.")


async def _again(service: Service, principal: Principal, found: EscrowRecord) -> EscrowRecord:
    """Return the escrow as the chain has it now."""
    await service.catch_up()
    return await find(service, principal, found.escrow_id)


async def _error(  # noqa: PLR0917
    service: Service,
    principal: Principal,
    found: EscrowRecord,
    failure: RefusedError | Outcome,
    allowed: Sequence[str],
    explain: Explain,
) -> ApiError:
    explained = explain(failure)
    if explained is not None:
        return explained
    if not is_known(error_name(service.codec, failure)):
        # A settled escrow's account is gone, which the program cannot tell from one that never was.
        try:
            _require(await _again(service, principal, found), allowed)
        except BusinessError as settled:
            return settled
    return business_error(service.codec, failure)


async def _speaker(
    service: Service, principal: Principal, found: EscrowRecord, token: str | None, named: str | None = None
) -> _Speaker:
    """Return who speaks: the agent, or for a key of another role the wallet of the session token, else the operator.

    Raises ``session_token_invalid`` and ``session_token_expired``.
    """
    named = principal.wallet_id or named
    if token is None and principal.role != "agent":
        return _Speaker(named, None)
    sides = [side for side in (named,) if side] or [side for side in (found.wallet_id, found.to_wallet) if side]
    for side in sides:
        wallet = await wallets.find(service, found.org, side)
        known = token is not None and str(decode_token(token).pubkey()) == wallet.session_authority
        if known or principal.role == "agent":
            return _Speaker(side, session_key(principal, token, wallet))
    raise AuthenticationError("session_token_invalid")


def _open(found: EscrowRecord) -> OpenEscrow:
    addresses = (found.address, found.vault, found.receiver, found.payer)
    return OpenEscrow(*(Pubkey.from_string(address) for address in addresses))


def _explain_session(service: Service, failure: RefusedError | Outcome, speaker: _Speaker) -> ApiError | None:
    """Return the error of a session that the chain does not know, or not any more."""
    if speaker.session is not None and error_name(service.codec, failure) == "Unauthorized":
        return AuthenticationError("session_token_invalid")
    return None
