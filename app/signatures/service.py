"""Submits, lists and withdraws transactions that the organisation's authority signs elsewhere."""

import base64
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from pydantic import BaseModel
from solders.pubkey import Pubkey
from solders.signature import Signature
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.signing import shown_unsigned
from app.budgets import changes as budget_changes
from app.budgets import service as budgets
from app.budgets.changes import CLOSE
from app.budgets.changes import deleted as deleted_budget
from app.chain.errors import BlockhashNotFound
from app.chain.nonces import NonceAccount, advance
from app.core.errors import ApiError, BusinessError, ConflictError, NotFoundError, RequestError, UnavailableError
from app.core.hardware_tokens import signature_by
from app.core.timestamps import now_ms
from app.organisations import service as organisations
from app.organisations.models import PausedOrganisation
from app.policies import service as policies
from app.policies.changes import deleted_policy
from app.recipients import service as recipients
from app.signatures.models import ChangeMade, UnsignedTransactions, WithdrawnTransaction
from app.store.attempts import Attempt
from app.store.attempts import attempt as attempt_of
from app.store.audit import append
from app.store.unsigned_transactions import (
    AWAITING,
    VOID,
    WITHDRAWN,
    UnsignedTransaction,
    awaiting_signature,
    end_expired,
    store_signed,
    unsigned_by_message,
    unsigned_transaction,
)
from app.store.unsigned_transactions import withdraw as withdraw_unsigned
from app.submission.changes import carry_out, earlier_outcome
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.offline import ADVANCE
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Authority, Outcome, Plan, SimulationFailedError
from app.submission.program_errors import business_error, error_name, require_confirmed
from app.wallets import service as wallets
from idl.transactions import SignedTransaction, parse

_NOT_SIGNED, _VOID = "unsigned_transaction_not_found", "unsigned_transaction_void"
#: The program's errors for a change that is outdated because other changes landed after its creation.
_OVERTAKEN = frozenset(
    {
        *("VersionMismatch", "SequenceMismatch", "WrongAllowlist", "AllowlistGap", "AllowlistSealed"),
        *("AllowlistNotSealed", "AllowlistMismatch", "WrongPolicy", "WrongBudget", "BudgetRequired"),
        "BudgetParentRequired",
    }
)
#: Types of attempts that create, change or close a budget. Their `recipient` is the budget's id.
_OF_BUDGETS = frozenset(kind.name for kind in budget_changes.PLAN_TYPES)


async def list_all(service: Service, principal: Principal) -> UnsignedTransactions:
    """Return the transactions awaiting a signature, oldest first."""
    await service.db.write(lambda conn: end_expired(conn, now_ms()))
    found = await service.db.read(lambda conn: awaiting_signature(conn, principal.org))
    return UnsignedTransactions(data=[shown_unsigned(*one) for one in found])


async def send(service: Service, principal: Principal, claim: Claim, text: str) -> ChangeMade:
    """Complete, store and send a transaction signed elsewhere, and return the response of its change.

    Raises ``unsigned_transaction_not_found`` if the organisation has no such transaction, ``invalid_signature``
    if it is malformed or the authority's signature is missing, ``unsigned_transaction_void`` if it can no longer be
    sent, and the errors of its change.
    """
    signed = _parsed(text)
    await service.db.write(lambda conn: end_expired(conn, now_ms()))
    unsigned = await service.db.read(lambda conn: unsigned_by_message(conn, principal.org, signed.message_hash))
    if unsigned is None:
        raise NotFoundError(_NOT_SIGNED)
    _check_signature(signed, unsigned)
    attempt = await _attempt(service, unsigned)
    async with _changing(service, attempt), service.locks.hold(LockScope.NONCES, principal.org):
        attempt = await _attempt(service, unsigned)
        if attempt.status == AWAITING:
            attempt = await _complete(service, principal, claim, attempt, signed)
    outcome = await service.submitter.look(attempt)
    if outcome.status == "pending":
        sendable = outcome.sendable
        outcome = await service.submitter.wait(await service.submitter.resend(attempt) if sendable else outcome, claim)
    if outcome.status == "failed" and outcome.error in (WITHDRAWN, VOID, "expired"):
        raise BusinessError(_VOID)
    require_confirmed(service.codec, outcome)
    return ChangeMade.model_validate(await _answer(service, principal, outcome.attempt))


def _changing(service: Service, attempt: Attempt) -> AbstractAsyncContextManager[None]:
    """Return the context that holds the changed object's lock. Other changes of the object wait for this lock."""
    if attempt.wallet_id is not None:
        return service.locks.hold(LockScope.WALLET_STATE, attempt.wallet_id)
    about = attempt.policy_id or (attempt.recipient if attempt.type in _OF_BUDGETS else None)
    if about is not None:
        return service.locks.hold(LockScope.POLICY, f"{attempt.org}/{about}")
    if attempt.recipient_address is not None:
        return service.locks.hold(LockScope.RECIPIENTS, attempt.org)
    return service.locks.hold(LockScope.ORG_STATE, attempt.org)


def _parsed(text: str) -> SignedTransaction:
    try:
        return parse(base64.b64decode(text, validate=True))
    except ValueError:
        raise RequestError("invalid_signature", "transaction: must be a transaction in base64.") from None


def _check_signature(signed: SignedTransaction, unsigned: UnsignedTransaction) -> None:
    """Raise ``invalid_signature`` unless the authority signed the message."""
    authority = Pubkey.from_string(unsigned.authority)
    if not any(
        key == authority and signature.verify(key, signed.message)
        for key, signature in zip(signed.signers, signed.signatures, strict=True)
    ):
        raise RequestError("invalid_signature", f"transaction: must have a valid signature of {authority}.")


async def _attempt(service: Service, unsigned: UnsignedTransaction) -> Attempt:
    found = await service.db.read(lambda conn: attempt_of(conn, unsigned.tx_id))
    if found is None:
        raise UnavailableError("chain_unavailable")
    return found


async def _complete(
    service: Service, principal: Principal, claim: Claim, attempt: Attempt, signed: SignedTransaction
) -> Attempt:
    """Add the service's signatures, simulate the transaction, and store it as ready to send."""
    raw, signature = await _co_signed(service, signed)
    kind = service.submitter.type_of(attempt)
    await require_no_pending_change(service, attempt.org, kind.waits_for, wallet_id=attempt.wallet_id)
    service.brake.check(kind, attempt.org, attempt.wallet_id, attested=False)
    try:
        simulation = await service.chain.simulate(raw)
    except BlockhashNotFound:
        await _require_advanced(service, attempt)
        raise BusinessError(_VOID) from None
    if simulation.err is not None:
        raise _refusal(service, SimulationFailedError(simulation))

    def store(conn: Connection) -> bool:
        service.brake.check_rows(conn, kind, attempt.org, attempt.wallet_id, attested=False)
        done = store_signed(conn, attempt.tx_id, raw, signature)
        if done:
            details = {"type": attempt.type, "tx_signature": signature}
            append(conn, principal.entry("signed_transaction.send", attempt.tx_id, **details))
        return done

    stored = await claim.store(store, tx_id=attempt.tx_id)
    if not stored:
        claim.resolve(lasts=False)
        raise BusinessError(_VOID)
    return replace(attempt, status="pending", raw=raw, signature=signature)


async def _co_signed(service: Service, signed: SignedTransaction) -> tuple[bytes, str]:
    """Return the transaction with the service's signatures added, and its first signature."""
    signers = service.signers
    ours = {signers.fee_payer_address: signers.fee_payer, signers.operator_address: signers.operator}
    keys, content = signed.signers, signed.message
    if keys[0] != signers.fee_payer_address:
        raise BusinessError(
            _VOID, "The service's fee payer has changed since the transaction was created. Request the change again."
        )
    signatures: list[Signature] = [
        await signature_by(ours[key], content) if key in ours else given
        for key, given in zip(keys, signed.signatures, strict=True)
    ]
    if not all(one.verify(key, content) for key, one in zip(keys, signatures, strict=True)):
        raise BusinessError(
            _VOID, "The service's operator key has changed since the transaction was created. Request the change again."
        )
    return signed.signed_with(signatures), str(signatures[0])


async def _require_advanced(service: Service, attempt: Attempt) -> None:
    """Raise ``chain_unavailable`` unless the nonce was advanced. If it was not, the node is stale."""
    assert attempt.nonce_account is not None
    found = NonceAccount.of(await service.chain.account(attempt.nonce_account))
    if found is None or str(found.nonce) == attempt.nonce:
        raise UnavailableError("chain_unavailable", headers={"Retry-After": "1"})


def _refusal(service: Service, refused: SimulationFailedError) -> ApiError:
    name = error_name(service.codec, refused)
    if name == "Unauthorized":
        return BusinessError(
            _VOID, "A signer has lost its role since the transaction was created. Request the change again."
        )
    if name in _OVERTAKEN:
        return ConflictError(
            "version_conflict", "The object has changed since this transaction was created. Request the change again."
        )
    return business_error(service.codec, refused)


async def _answer(service: Service, principal: Principal, attempt: Attempt) -> BaseModel:
    """Return the response of the change that an attempt's transaction made."""
    org = principal.org
    if attempt.type == "close_policy":
        identifier, closing = str(attempt.policy_id), str(attempt.signature)
        return await service.db.read(lambda conn: deleted_policy(conn, org, identifier, closing))
    if attempt.type == CLOSE:
        return await deleted_budget(service, org, str(attempt.recipient))
    if attempt.type in _OF_BUDGETS:
        return await budgets.get(service, principal, str(attempt.recipient))
    if attempt.policy_id is not None:
        return await policies.get(service, principal, attempt.policy_id)
    if attempt.wallet_id is not None:
        return wallets.shown(await wallets.find(service, org, attempt.wallet_id))
    if attempt.recipient_address is not None:
        return await recipients.get(service, principal, attempt.recipient_address)
    if attempt.type == "unpause_org":
        return PausedOrganisation(paused=False)
    if attempt.type == ADVANCE.name:
        return WithdrawnTransaction(id=attempt.tx_id, status="withdrawn")
    return await organisations.show(service, principal)


async def withdraw(service: Service, principal: Principal, claim: Claim, tx_id: str) -> WithdrawnTransaction:
    """Withdraw a transaction.

    Also advance its nonce if the service has the authority's key or the request signs offline.

    Raises ``unsigned_transaction_not_found``, ``unsigned_transaction_void`` if the transaction has landed,
    and ``authority_offline`` if it was sent and the advance of its nonce cannot be signed here.
    """
    org = principal.org
    answer = WithdrawnTransaction(id=tx_id, status="withdrawn")
    async with service.locks.hold(LockScope.NONCES, org):
        if await earlier_outcome(service, claim) is not None:
            return answer
        unsigned = await service.db.read(lambda conn: unsigned_transaction(conn, org, tx_id))
        if unsigned is None:
            raise NotFoundError(_NOT_SIGNED)
        attempt = await _attempt(service, unsigned)
        if attempt.status == AWAITING and not await claim.store(lambda conn: _withdraw(conn, principal, tx_id)):
            # Since the read, another process has sent the transaction, or it has become void.
            attempt = await _attempt(service, unsigned)
        if attempt.status == "pending":
            attempt = await _outcome(service, attempt)
        if attempt.status == "confirmed":
            raise BusinessError(_VOID, "The transaction has already landed.")
        plan = await _advance(service, claim, unsigned, attempt)
    if plan is not None:
        await carry_out(service, plan, claim, nonce_account=attempt.nonce_account)
    return answer


def _withdraw(conn: Connection, principal: Principal, tx_id: str) -> bool:
    done = withdraw_unsigned(conn, tx_id, now_ms())
    if done:
        append(conn, principal.entry("signed_transaction.withdraw", tx_id))
    return done


async def _outcome(service: Service, attempt: Attempt) -> Attempt:
    outcome: Outcome = await service.submitter.look(attempt)
    return replace(outcome.attempt, status=outcome.status)


async def _advance(service: Service, claim: Claim, unsigned: UnsignedTransaction, attempt: Attempt) -> Plan | None:
    """Return the plan that advances an attempt's nonce, or None if nothing has to be advanced here.

    Without the authority's key, returns None for an attempt that was not sent. For an attempt that was sent, raises
    ``authority_offline``, because only the advance of its nonce ends it. With `sign_offline`, the plan has no steps.
    """
    assert attempt.nonce_account is not None
    found = NonceAccount.of(await service.chain.account(attempt.nonce_account))
    if found is None or str(found.nonce) != attempt.nonce:
        return None
    key = None if claim.sign_offline else service.signers.authority
    if key is not None and str(key.pubkey()) != unsigned.authority:
        key = None
    if key is None and not claim.sign_offline:
        if attempt.status == "pending":
            raise UnavailableError("authority_offline")
        return None
    authority = Authority(Pubkey.from_string(unsigned.authority), key)
    steps = [] if key is None else [advance(Pubkey.from_string(attempt.nonce_account), authority.address)]
    return Plan(org=attempt.org, type=ADVANCE, instructions=steps, authority=authority)
