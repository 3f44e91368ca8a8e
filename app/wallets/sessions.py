"""Session tokens: operators issue them, and agents rotate them within the lifetime that an operator granted."""

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.auth import encode_token, session_key
from app.access.keyring import Principal
from app.core.errors import AuthenticationError, RequestError
from app.core.timestamps import iso
from app.store.attempts import Attempt
from app.store.daily_counts import MAX_RECORDS, count_record, next_day
from app.store.session_grants import granted_until, store_grant
from app.store.wallets import WalletRecord
from app.submission.chain_state import current_account
from app.submission.changes import carry_out_current
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType
from app.wallets import service as wallets
from app.wallets.models import RotateToken, SessionToken

#: A rotation may be superseded by a newer one: the earlier rotation's token is lost, and the newer token replaces it in
#: any case.
_ROTATE = PlanType("rotate_token", resent=False, waits_for=frozenset({"rotate_token"}), superseded=True, stops=True)
PLAN_TYPES = (_ROTATE,)
_ROTATIONS = (
    f"The agent has rotated the token {MAX_RECORDS:,} times today. Wait until the next UTC day, or ask an operator for "
    "a token."
)


async def rotate(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: RotateToken, token: str | None
) -> SessionToken:
    """Make a new session key the wallet's session authority. The service keeps only the public key.

    Only the response contains the token. For replays, the service stores the response sealed. If a run of the request
    ended before its response was stored, its token is lost, and the repeated request issues another one. An agent must
    present its current token, except when it repeats a request with a stored transaction. An agent's new token ends no
    later than the operator's grant. Raises ``session_token_invalid`` and ``session_token_expired``.
    """
    if claim.attempt is None:
        await wallets.find_living(service, principal.org, wallet_id)
    if principal.role == "agent":
        return await _rotate(service, principal, claim, wallet_id, body, token)
    # Stop the current session's payments: they may be the reason for the rotation.
    hold = service.brake.engage(principal, wallet_id, "session")
    try:
        await service.brake.show(hold)
        return await _rotate(service, principal, claim, wallet_id, body, token)
    finally:
        await service.brake.release(hold)


async def _rotate(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, wallet_id: str, body: RotateToken, token: str | None
) -> SessionToken:
    async with service.locks.hold(LockScope.WALLET_SESSION, wallet_id):
        await require_no_pending_change(service, principal.org, _ROTATE.waits_for, wallet_id=wallet_id)
        # If two rotations use the same token, the second must see that the first has ended it.
        before = await wallets.caught_up(service, principal.org, wallet_id)
        # The transaction of an earlier run was also a rotation. The new rotation replaces it.
        claim.resolve(lasts=False)
        if not claim.repeats:
            # An earlier run of this request has already checked the token, and may have replaced it without a response.
            session_key(principal, token, before, service.clock)
        session, expires_at = Keypair(), await service.clock.read() + body.ttl_seconds
        until, agent = expires_at, principal.role == "agent"
        if agent:
            now = service.clock.seen_ms()
            if not await service.db.write(lambda conn: count_record(conn, wallet_id, "rotation", now)):
                raise RequestError("rate_limited", _ROTATIONS, headers={"Retry-After": str(next_day(now))})
            until = await _granted(service, before)
            expires_at = min(expires_at, until)

        known: WalletRecord | None = before

        async def plan() -> Plan:
            nonlocal known
            current, known = known or await wallets.caught_up(service, principal.org, wallet_id), None
            if agent and current.session_authority != before.session_authority:
                # Another rotation has ended the agent's token.
                raise AuthenticationError("session_token_invalid")
            return await _plan(service, principal, current, session.pubkey(), expires_at, until)

        await carry_out_current(service, plan, claim, overtakes=not agent)
    return SessionToken(
        wallet_id=wallet_id, id=wallet_id, session_token=encode_token(session), expires_at=iso(expires_at)
    )


async def _granted(service: Service, before: WalletRecord) -> int:
    """Return the time until which the wallet's agent may hold a session, in Unix seconds.

    Raises ``session_token_expired`` if that time has passed.
    """
    wallet_id, authority = before.wallet_id, before.session_authority
    found = await service.db.read(lambda conn: authority and granted_until(conn, wallet_id, authority))
    # A session created without this service is granted for its own lifetime.
    until = int(found or before.session_expires_at)
    if until <= service.clock.now():
        raise AuthenticationError("session_token_expired")
    return until


async def _plan(  # noqa: PLR0917
    service: Service, principal: Principal, before: WalletRecord, session: Pubkey, expires_at: int, until: int
) -> Plan:
    """Return the plan of a rotation. It also stores the time limit for further rotations by the agent."""
    state = await current_account(service, before.vault, "Vault", sequence=before.sequence)
    rotation = service.instructions(before.org).update_wallet(
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(before.vault),
        session=(session, expires_at),
        expected_sessions=state["sessions"],
    )

    def store(conn: Connection, _attempt: Attempt) -> None:
        if principal.role == "agent":
            # An operator's rotation may be a response to a stolen token.
            service.brake.check_session(conn, before.org, before.wallet_id)
        in_force = [] if before.session_authority is None else [before.session_authority]
        store_grant(conn, before.wallet_id, str(session), until, keep=in_force)

    action = "session.create" if before.session_authority is None else "session.rotate"
    return Plan(
        org=before.org,
        type=_ROTATE,
        instructions=[rotation],
        signers=[service.signers.operator],
        wallet_id=before.wallet_id,
        entry=principal.entry(action, before.wallet_id, expires_at=iso(expires_at)),
        limited=principal.role == "agent",
        on_store=store,
    )
