"""The fee payer's SOL: a reserve for brakes, daily limits for wallets and organisations, and the balance."""

import asyncio
from collections.abc import Mapping

import structlog
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.fees import SETTLEMENT, SIGNATURE, TOKEN_ACCOUNT_RENT
from app.core.errors import RequestError, UnavailableError
from app.core.money import format_sol
from app.core.settings import Settings
from app.core.signers import Signer
from app.core.timestamps import DAY, iso_ms
from app.store.alert_kinds import EVENT_OF
from app.store.attempts import Attempt
from app.store.fee_payer_use import charge, held_rent
from app.store.feed import report_once
from app.submission.plan import Plan

_log = structlog.get_logger(__name__)

LIMITS = PER_DAY, PER_WALLET_DAY, HELD_PER_WALLET = "sol_per_day", "sol_per_wallet_day", "sol_held_per_wallet"
"""Names of the settings with limits in SOL. An organisation may set lower ones for itself."""
#: Seconds to wait for the chain.
_PATIENCE = 2.0


class FeePayer:
    """Signs as the fee payer, and limits the cost of expenses and of agents' rotations.

    The costs of other transactions are only counted.
    """

    def __init__(self, signer: Signer, settings: Settings, chain: ChainClient) -> None:
        self.signer = signer
        self.address: Pubkey = signer.pubkey()
        self.reserve = settings.lamports("fee_payer_reserve") or 0
        unlimited = settings.rpc_url is None
        self._limits = {
            name: None if unlimited and name not in settings.model_fields_set else settings.lamports(name)
            for name in LIMITS
        }
        self._chain = chain

    def limit(self, name: str, own: Mapping[str, int]) -> int | None:
        """Return the lower of the setting's limit and the organisation's ``own`` in lamports, or None for no limit."""
        return min((one for one in (self._limits[name], own.get(name)) if one is not None), default=None)

    def require_reserve(self, plan: Plan, left: int | None) -> None:
        """Raise ``fee_payer_insufficient`` if an expense would leave the fee payer less than the reserve.

        ``left`` is the fee payer's balance in lamports after the simulated transaction, or None if the node did not
        report it.
        """
        if plan.type.braked and plan.fee_payer is None and left is not None and left < self.reserve:
            _log.error("fee_payer_insufficient", fee_payer=str(self.address), lamports=left)
            raise insufficient()

    def charge(self, conn: Connection, plan: Plan, attempt: Attempt) -> None:
        """Count the cost of a wallet's transaction. Call it in the database transaction that stores the attempt.

        Appends an event when a day's total cost reaches 80 % of its limit. Raises ``sol_limit_reached`` if an expense
        would exceed a limit.
        """
        if plan.wallet_id is None or plan.fee_payer is not None or attempt.raw is None:
            return
        # A serialised transaction begins with the number of its signatures.
        fee = 0 if plan.type.prepaid else SIGNATURE * attempt.raw[0] + (SETTLEMENT if plan.type.held else 0)
        cost = fee + plan.prepaid + TOKEN_ACCOUNT_RENT * plan.opens_account
        day = attempt.created_at // DAY
        wallet, org, own = charge(conn, plan.org, plan.wallet_id, day, lamports=cost, accounts=int(plan.opens_account))
        for name, used, scope in ((PER_WALLET_DAY, wallet, plan.wallet_id), (PER_DAY, org, None)):
            limit = self.limit(name, own)
            if limit is None:
                continue
            if used > limit and (plan.type.braked or plan.limited):
                raise _reached("wallet" if scope else "organisation", limit, "a day", attempt, (day + 1) * DAY)
            if 5 * (used - cost) < 4 * limit <= 5 * used:
                _alert(conn, attempt, scope, used, limit)
        limit = self.limit(HELD_PER_WALLET, own)
        if plan.type.held and limit is not None:
            held, ends = held_rent(conn, plan.wallet_id)
            if held + plan.type.held > limit:
                raise _reached("wallet", limit, "of rent in open escrows and allowances", attempt, ends * 1000)

    async def balance(self) -> int | None:
        """Return the fee payer's lamports, or None if the chain does not answer within two seconds."""
        try:
            async with asyncio.timeout(_PATIENCE):
                account = await self._chain.account(self.address)
        except (ChainUnavailable, RpcError, TimeoutError):
            return None
        return 0 if account is None else account.lamports


def insufficient() -> UnavailableError:
    """Return the error for a fee payer with too little SOL."""
    return UnavailableError("fee_payer_insufficient", headers={"Retry-After": "60"})


def _reached(who: str, limit: int, of_what: str, attempt: Attempt, ends_at: int) -> RequestError:
    wait = max(1, -((attempt.created_at - ends_at) // 1000))
    retry_at = iso_ms(max(ends_at, attempt.created_at))
    message = f"The {who} has reached its limit of {format_sol(limit)} SOL {of_what}. Retry at {retry_at}."
    return RequestError("sol_limit_reached", message, fields={"retry_at": retry_at}, headers={"Retry-After": str(wait)})


def _alert(conn: Connection, attempt: Attempt, wallet_id: str | None, used: int, limit: int) -> None:
    now, day = attempt.created_at, attempt.created_at // DAY
    key, says = (wallet_id or attempt.org, str(day)), f"{format_sol(used)} of {format_sol(limit)} SOL used today"
    shown = {"spent": format_sol(used), "limit": format_sol(limit), "resets_at": iso_ms((day + 1) * DAY)}
    report_once(conn, EVENT_OF["sol_limit"], attempt.org, now, *key, summary=says, wallet_id=wallet_id, **shown)
