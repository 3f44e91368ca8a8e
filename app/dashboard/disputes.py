"""Disputes: escrows that wait for the arbiter's decision, which is due within 24 hours."""

from dataclasses import dataclass

from solders.pubkey import Pubkey
from starlette.responses import Response

from app.access.auth import ADMINS, READERS
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import BusinessError, RequestError
from app.core.timestamps import parse_iso_ms
from app.dashboard.forms.formatting import span, usdc
from app.dashboard.forms.review import BeforeAfter, Review, ask
from app.dashboard.forms.submit_once import once
from app.dashboard.pages import View, action, page
from app.escrows import service as escrows
from app.escrows import settlement
from app.escrows.models import Escrow, ResolveDispute
from app.store.escrows import DECIDED_WITHIN, DISPUTED, LOCKED, EscrowRecord
from app.store.wallets import labels
from app.submission.context import Service
from app.wallets import service as wallets

_SHOWN = 100
_HERE = "Disputes"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadline for a dispute's decision, in Unix milliseconds and in words. ``over`` is True once it has passed."""

    at: int
    text: str
    over: bool

    @classmethod
    def of(cls, found: Escrow, now: int) -> "Deadline | None":
        """Return the deadline of a disputed escrow, or None for any other escrow."""
        if found.dispute is None or found.status != DISPUTED:
            return None
        at = parse_iso_ms(found.dispute.raised_at) + DECIDED_WITHIN * 1000
        return cls(at, f"{span(now - at)} overdue" if now > at else f"{span(at - now)} left", now > at)


@page("/disputes", roles=READERS)
async def show(view: View) -> Response:
    """Show the disputes that wait for the arbiter, oldest first."""
    service, by = view.service, view.principal
    found = await escrows.queue(service, by, limit=_SHOWN)
    now = service.clock.seen_ms()
    ids = {one for each in found for one in (each.from_wallet, each.to_wallet)}
    return view.render(
        "disputes.html",
        disputes=[(one, Deadline.of(one, now)) for one in found],
        labels=await service.db.read(lambda conn: labels(conn, ids)),
        full=len(found) == _SHOWN,
    )


@page("/disputes/{escrow_id}", roles=READERS)
async def of_escrow(view: View) -> Response:
    """Show an escrow with its dispute, and the form for the decision."""
    service, by = view.service, view.principal
    found = await escrows.get(service, by, view.path("escrow_id"))
    named = await service.db.read(lambda conn: labels(conn, {found.from_wallet, found.to_wallet}))
    return view.render(
        "dispute.html",
        escrow=found,
        deadline=Deadline.of(found, service.clock.seen_ms()),
        labels=named,
        decidable=by.role == "admin" and found.status == DISPUTED and service.signers.arbiter is not None,
        offline=service.signers.arbiter is None,
    )


@action("/disputes/{escrow_id}/review", roles=ADMINS, back=of_escrow)
async def review(view: View) -> Response:
    """Show how the decision entered in the form would change the balances of both parties."""
    service, by = view.service, view.principal
    found = await escrows.find(service, by, view.path("escrow_id"))
    body = _decision(view)
    if found.status != DISPUTED:
        raise BusinessError("escrow_not_disputed" if found.status == LOCKED else "escrow_already_settled")
    released = settlement.share_of(found, body)
    payer = await wallets.find(service, by.org, found.wallet_id)
    back = found.amount - released
    shifts = [
        BeforeAfter.of("Locked in the escrow", found.amount, 0),
        await _receiver(service, found, released),
        BeforeAfter.of(f"{payer.label or payer.wallet_id}, the payer", payer.balance, payer.balance + back),
    ]
    text = f"{usdc(released)} USDC go to the receiver, {usdc(back)} USDC return to the payer. The decision is final."
    path = view.url("disputes", found.escrow_id, "decide")
    return ask(view, Review(f"Decide: {body.decision}", text, shifts, "Decide", path, _HERE))


@action("/disputes/{escrow_id}/decide", roles=ADMINS, back=of_escrow, step_up=True)
async def decide(view: View) -> str:
    """Decide a dispute. The arbiter's key signs the decision."""
    escrow_id, body = view.path("escrow_id"), _decision(view)
    await once(view, body, Escrow, view.asks(settlement.resolve, escrow_id, body))
    return view.url("disputes", done="decided")


def _decision(view: View) -> ResolveDispute:
    """Return the decision entered in the form. Raises InvalidFormError and ``invalid_request``."""
    amount = view.typed("released_amount").strip()
    if view.typed("decision") != "split" and amount:
        raise RequestError("invalid_request", "released_amount: Leave this field empty, or choose a split.")
    if view.typed("decision") == "split" and not amount:
        raise RequestError("invalid_request", "released_amount: This field is required for a split.")
    return view.body(ResolveDispute, released_amount=amount)


async def _receiver(service: Service, found: EscrowRecord, released: int) -> BeforeAfter:
    """Return the receiver's balance before and after the payment of ``released`` micro-USDC.

    The balance of a receiver without a vault is read from the chain. It is unknown if the chain does not answer.
    """
    if found.to_wallet is not None:
        to = await wallets.find(service, found.org, found.to_wallet)
        return BeforeAfter.of(f"{to.label or to.wallet_id}, the receiver", to.balance, to.balance + released)
    name, owner = f"{found.receiver}, the receiver", Pubkey.from_string(found.receiver)
    try:
        held = await service.chain.token_balance(service.addresses.token_account(owner)) or 0
    except (ChainUnavailable, RpcError):
        return BeforeAfter(name, "unknown", f"{usdc(released)} more")
    return BeforeAfter.of(name, held, held + released)
