"""The form that creates a vault for an agent."""

from starlette.responses import Response

from app.access.auth import OPERATORS
from app.budgets import service as budgets
from app.core.errors import UnavailableError
from app.dashboard.forms.formatting import usdc
from app.dashboard.forms.submit_once import once
from app.dashboard.pages import View, action, page
from app.policies import service as policies
from app.store.policies import PolicyRecord
from app.wallets import service as wallets
from app.wallets.models import CreateWallet, Wallet

_ELSEWHERE = (
    "In this organisation, only the authority may put vaults under policies, but its key is not in the service. "
    "Start the service with that key, or let operators attach policies."
)


def _choice(policy: PolicyRecord) -> str:
    """Return the label of a policy: its name, and its caps for a payment and for 24 hours."""
    caps = ((policy.rules.max_per_tx, "a payment"), (policy.rules.max_per_day, "in 24 hours"))
    said = [f"{usdc(cap)} {per}" for cap, per in caps if cap is not None]
    return f"{policy.name}: {', '.join(said) or 'no cap per payment or per 24 hours'}"


@page("/vaults/new", roles=OPERATORS)
async def show(view: View) -> Response:
    """Show the form that creates a vault."""
    service, by = view.service, view.principal
    return view.render(
        "vault_new.html",
        policies=[(one.policy_id, _choice(one)) for one in (await policies.by_id(service, by)).values()],
        budgets=await budgets.names(service, by),
    )


@action("/vaults", roles=OPERATORS, back=show)
async def create(view: View) -> str:
    """Create a vault, and redirect to its page."""
    if view.sign_offline:
        # A new vault is never signed offline. If the signature were late or missing, a vault that does not exist would
        # occupy the agent's id.
        raise UnavailableError("authority_offline", _ELSEWHERE)
    tags = [tag for text in view.typed("tags").split(",") if (tag := text.strip())]
    body = view.body(CreateWallet, tags=tags, budget_id=view.typed("budget_id") or None)
    made = await once(view, body, Wallet, view.asks(wallets.create, body))
    return view.url("vaults", made.wallet_id, done="vault-created")
