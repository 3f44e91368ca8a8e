"""Transactions that the organisation's authority signs offline.

Each transaction is built on a durable nonce that only the organisation's authority can advance. On the chain, neither
time nor a third party can therefore invalidate the transaction. Its bytes lack the fee payer's signature until the
client returns them with the authority's signature. The service therefore never completes a transaction that was
withdrawn or has expired. Once a later transaction has advanced the nonce, such a transaction cannot land at all. The
fee payer pays the rent of the nonce accounts. Nonce accounts are reused. For each pair of authority and fee payer, an
organisation gets a further nonce account only if all existing ones are needed by unsigned or pending transactions.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.addresses import TOKEN_PROGRAMS
from app.chain.errors import BlockhashNotFound
from app.chain.nonces import NonceAccount, NonceAddress, advance
from app.chain.transactions import MAX_SIZE, unsigned
from app.core.errors import BusinessError, RequestError, UnavailableError
from app.core.signers import Signer
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.store.attempts import Attempt, insert_attempt
from app.store.audit import append
from app.store.unsigned_transactions import (
    AWAITING,
    UnsignedTransaction,
    end_expired,
    nonces_in_use,
)
from app.submission.chain_state import org_account
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.plan import (
    Authority,
    AwaitingSignatureError,
    Plan,
    PlanType,
    SimulationFailedError,
    attempt_for,
    with_random_compute_limit,
)
from app.submission.program_errors import business_error, require_confirmed
from idl.transactions import message_hash

LIFETIME = 7 * 86_400_000
"""Milliseconds from the creation of an unsigned transaction until it expires."""
MAX_OUTSTANDING = 32
"""Maximum number of an organisation's nonce accounts for one authority and fee payer.

A nonce account is free again once its transaction is neither unsigned nor pending.
"""
#: Number of instructions before the plan's own: the nonce advance and the compute unit limit.
_ADDED = 2
_CREATE_NONCE = PlanType("create_nonce", indexed=False)
ADVANCE = PlanType("advance_nonce", indexed=False)
"""Advances a nonce and does nothing else, so that no transaction built on the old nonce can land."""
PLAN_TYPES = (_CREATE_NONCE, ADVANCE)
#: Number of tries with a nonce, and seconds between them. A nonce cannot be used in the slot that stored it.
_LOOKS, _PAUSE = 20, 0.2
_TOO_LONG = (
    "The change does not fit into one transaction, so it cannot be signed offline. Shorten the allowlist, or make the "
    "change on a service that holds the authority's key."
)
_NEEDLESS = (
    "The change needs no signature by the authority and would take effect immediately. Send it without `sign=offline`, "
    "in a separate request. Nothing was done."
)


async def authority_of(service: Service, org: str, claim: Claim) -> Authority:
    """Return the organisation's authority, the required signer of the request's transaction.

    Raises ``authority_offline`` if the service lacks the authority's key, unless the request asks for `sign=offline`.
    """
    if not claim.sign_offline:
        return local_authority(service.signers.require_authority())
    return Authority((await org_account(service, org))["authority"], None)


def local_authority(key: Signer) -> Authority:
    """Return the authority with its key, for signing in this service."""
    return Authority(key.pubkey(), key)


def require_single_transaction(authority: Authority, transactions: Sequence[object]) -> None:
    """Raise ``invalid_request`` if several transactions would have to be signed offline."""
    if authority.key is None and len(transactions) > 1:
        raise RequestError("invalid_request", _TOO_LONG)


def refuse_unneeded_offline(claim: Claim, *, field: str | None = None) -> None:
    """Raise ``invalid_request`` if the request asks for `sign=offline` but its change needs no offline signature."""
    if claim.sign_offline:
        raise RequestError("invalid_request", _NEEDLESS if field is None else f"{field}: {_NEEDLESS}")


async def require_local_signers(service: Service, plan: Plan, claim: Claim, nonce_account: str | None = None) -> None:
    """Return if all of the plan's signers are local; otherwise store its transaction and raise AwaitingSignatureError.

    ``nonce_account`` names the nonce to use, even if another transaction uses it. Raises SimulationFailedError if the
    simulation fails, ``invalid_request`` if the transaction is too large, and ``too_many_unsigned_transactions`` if no
    nonce account is free.
    """
    if plan.authority is None or plan.authority.key is not None:
        return
    async with service.locks.hold(LockScope.NONCES, plan.org):
        raise AwaitingSignatureError(await _prepare(service, plan, plan.authority.address, claim, nonce_account))


async def _prepare(service: Service, plan: Plan, authority: Pubkey, claim: Claim, nonce_account: str | None) -> Attempt:
    if nonce_account is None:
        place = await _free_nonce_account(service, plan.org, authority)
    else:
        place = Pubkey.from_string(nonce_account)
    payer = service.signers.fee_payer_address
    for _ in range(_LOOKS):
        found = NonceAccount.of(await service.chain.account(place))
        if found is not None and found.authority == authority:
            steps = [advance(place, authority), *with_random_compute_limit(plan.instructions)]
            raw = unsigned(steps, payer=payer, blockhash=found.nonce)
            if len(raw) > MAX_SIZE:
                raise RequestError("invalid_request", _TOO_LONG)
            try:
                simulation = await service.chain.simulate(raw)
            except BlockhashNotFound:
                simulation = None
            if simulation is not None and simulation.err is not None:
                raise SimulationFailedError(simulation)
            if simulation is not None:
                return await _store(service, plan, claim, found, steps)
        await asyncio.sleep(_PAUSE)
    raise UnavailableError("chain_unavailable", headers={"Retry-After": "1"})


async def _free_nonce_account(service: Service, org: str, authority: Pubkey) -> Pubkey:
    """Return a nonce account that no outstanding transaction uses; creates one if there is none."""

    def look(conn: Connection) -> set[str]:
        end_expired(conn, now_ms())
        return nonces_in_use(conn, org)

    in_use = await service.db.write(look)
    payer = service.signers.fee_payer
    for number in range(MAX_OUTSTANDING):
        place = NonceAddress(payer.pubkey(), authority, Pubkey.from_string(org), number)
        if str(place.address) in in_use:
            continue
        account = await service.chain.account(place.address)
        if account is None:
            plan = Plan(org=org, type=_CREATE_NONCE, instructions=place.creation(), signers=[payer])
            try:
                require_confirmed(service.codec, await service.submitter.submit(plan, Claim(service.db)))
            except SimulationFailedError as refused:
                raise business_error(service.codec, refused) from None
            return place.address
        known = NonceAccount.of(account)
        # The authority may have handed its nonce account over to another key.
        if known is not None and known.authority == authority:
            return place.address
    raise BusinessError("too_many_unsigned_transactions")


async def _store(
    service: Service, plan: Plan, claim: Claim, found: NonceAccount, steps: Sequence[Instruction]
) -> Attempt:
    """Store the unsigned transaction with its attempt, the writes of the plan's hook, and its audit entry."""
    raw = unsigned(steps, payer=service.signers.fee_payer_address, blockhash=found.nonce)
    # Only the service checks this lifetime, so it starts and ends by the service's own clock.
    now = now_ms()
    attempt = attempt_for(plan, raw, status=AWAITING, created_at=now, added=_ADDED)
    attempt = replace(attempt, nonce_account=str(steps[0].accounts[0].pubkey), nonce=str(found.nonce))
    waiting = UnsignedTransaction(
        tx_id=attempt.tx_id,
        org=plan.org,
        message_hash=message_hash(raw),
        authority=str(found.authority),
        accounts=await _accounts(service, steps, found.nonce),
        expires_at=now + LIFETIME,
    )

    def store(conn: Connection) -> None:
        insert_attempt(conn, attempt)
        insert_record(conn, waiting)
        plan.on_store(conn, attempt)
        if plan.entry is not None:
            append(conn, plan.entry.about(tx_id=attempt.tx_id, status=AWAITING))

    await claim.store(store, tx_id=attempt.tx_id)
    return attempt


async def _accounts(service: Service, steps: Sequence[Instruction], nonce: Hash) -> dict[str, str]:
    """Return the base64 data of the transaction's program and token accounts.

    With this data, the signer can see the changes.
    """
    message = Message.new_with_blockhash(list(steps), service.signers.fee_payer_address, nonce)
    keys = message.account_keys
    found = await service.chain.accounts(keys)
    return {
        str(key): base64.b64encode(account.data).decode()
        for key, account in zip(keys, found, strict=True)
        if account is not None and account.owner in {service.codec.program_id, *TOKEN_PROGRAMS}
    }
