"""Operations that grant, list and settle allowances."""

from app.access.auth import OPERATORS, PAYERS, READERS_AND_AGENT
from app.allowances import service as allowances
from app.allowances.models import Allowance, AllowancePage, GrantAllowance, ListAllowances
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.payments.expense_errors import SPENDING_ERRORS


@operation(
    "POST /v1/wallets/{wallet_id}/allowances",
    tag="allowances",
    roles=OPERATORS,
    errors=(*SPENDING_ERRORS, "allowances_not_allowed", "too_many_allowances"),
    session=True,
)
async def grant_allowance(call: Call, body: GrantAllowance) -> Allowance:
    """Grant an allowance.

    Use an allowance for recipients that accept only a plain transfer. It sets aside money of the wallet for a delegate,
    who can transfer the money until the allowance is settled. The wallet's policy must permit allowances. The program
    judges and counts the grant like a payment to the owner of the destination. However, anyone with the delegate's key
    can send the money anywhere, so only operators and admins may name a delegate. The operator's key always signs; with
    a session token, the session's key also signs. Responds once the money is set aside, or with the status `pending` if
    that takes too long.
    """
    return await allowances.grant(call, call.path("wallet_id"), body)


@operation(
    "POST /v1/wallets/{wallet_id}/allowances/{allowance_id}/settle",
    tag="allowances",
    roles=PAYERS,
    errors=("wallet_not_found", "allowance_not_found", "transaction_failed"),
    session=True,
)
async def settle_allowance(call: Call, _body: EmptyBody) -> Allowance:
    """Settle an allowance.

    Ends the delegate's right to transfer, and takes back the money that the delegate has not transferred. Settle as
    soon as the delegate has paid or will not pay any more. The service settles the allowance itself at `expires_at`, or
    earlier after a freeze, a pause, a new session token or a change of the wallet's policy. A settled allowance stays
    as it is.
    """
    return await allowances.settle(call, call.path("wallet_id"), call.path("allowance_id"))


@operation(
    "GET /v1/wallets/{wallet_id}/allowances", tag="allowances", roles=READERS_AND_AGENT, errors=("wallet_not_found",)
)
async def list_allowances(call: Call, query: ListAllowances) -> AllowancePage:
    """List a wallet's allowances, newest first."""
    return await allowances.page(call.service, call.principal, call.path("wallet_id"), query)
