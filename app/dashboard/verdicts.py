"""Verdicts: why a payment was refused, and a form that tries a payment. No money moves on these pages."""

from dataclasses import replace

from starlette.responses import Response

from app.access.auth import READERS
from app.api.forms import validated
from app.api.operation import Call
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError
from app.dashboard.forms.error_messages import messages_of
from app.dashboard.forms.vault_lookup import payee_names
from app.dashboard.pages import View, page
from app.payments._simulation import simulate
from app.payments.models import SimulatePayment, Simulation
from app.policies import service as policies
from app.store.wallets import labels
from app.transactions import service as transactions
from app.wallets import service as wallets

_NO_ANSWER = "The chain does not answer, so the present verdicts of the rules are unknown. Try again in a minute."


@page("/transactions/{tx_id}", roles=READERS)
async def show(view: View) -> Response:
    """Show a transaction. For a refused one, also show the verdict of every rule on the same payment now."""
    one = await transactions.get(view.service, view.principal, view.path("tx_id"))
    named = await view.service.db.read(lambda conn: labels(conn, [one.wallet_id]))
    ruled = await policies.by_id(view.service, view.principal)
    return view.render(
        "transaction.html",
        one=one,
        label=named.get(one.wallet_id) or one.wallet_id,
        policy=ruled.get(one.policy_id or ""),
        payees=await payee_names(view, [one.recipient]),
        tried=await _try(view, one.wallet_id, one.recipient, one.amount) if one.status == "blocked" else None,
    )


@page("/vaults/{wallet_id}/try", roles=READERS)
async def form(view: View) -> Response:
    """Show the form that tries a payment and, once it is filled in, the verdict of every rule."""
    wallet = await wallets.find(view.service, view.principal.org, view.path("wallet_id"))
    view.form = [(name, view.request.query_params.get(name, "").strip()) for name in ("to", "amount")]
    to, amount = (text for _, text in view.form)
    tried = await _try(view, wallet.wallet_id, to, amount) if to or amount else None
    return view.render("try.html", wallet=wallet, tried=tried)


async def _try(view: View, wallet_id: str, to: str, amount: str) -> Simulation | None:
    """Return the verdicts on a payment by the vault's agent. If there are none, return None and show the reason."""
    agent = replace(view.principal, role="agent", wallet_id=wallet_id)
    try:
        body = validated(SimulatePayment, {"wallet_id": wallet_id, "to": to, "amount": amount})
        return await simulate(Call(view.service, agent, view.request, view.claim()), body)
    except ApiError as error:
        view.errors = messages_of(error, view.form)
    except (ChainUnavailable, RpcError):
        view.errors = {"": _NO_ANSWER}
    return None
