"""Operations on wallets: creation, changes, transfers in and out, session tokens."""

from app.access.auth import OPERATORS, PAYERS, READERS_AND_AGENT
from app.api.operation import Call, operation
from app.wallets import archiving, forgetting, funding, sessions
from app.wallets import service as wallets
from app.wallets.models import (
    ArchiveWallet,
    CreateWallet,
    ForgetRecipient,
    Funded,
    FundedBatch,
    FundWallet,
    FundWallets,
    ListWallets,
    RotateToken,
    SessionToken,
    UpdateWallet,
    Wallet,
    WalletDetail,
    WalletPage,
    WalletSol,
    WithdrawFromWallet,
    Withdrawn,
)

_CHANGING = ("wallet_not_found", "wallet_archived", "transaction_failed")
_FUNDING = (*_CHANGING, "invalid_amount", "org_insufficient_balance", "org_paused", "operator_limit_exceeded")


@operation(
    "POST /v1/wallets",
    roles=OPERATORS,
    errors=("policy_not_found", "budget_not_found", "wallet_agent_id_conflict", "transaction_failed"),
)
async def create_wallet(call: Call, body: CreateWallet) -> Wallet:
    """Create a wallet.

    An agent has one wallet per organisation. The wallet's address is derived from the ids of both.
    """
    return await wallets.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/wallets", roles=READERS_AND_AGENT)
async def list_wallets(call: Call, query: ListWallets) -> WalletPage:
    """List wallets.

    Newest first. Archived wallets are listed only with `status=archived`. A key with the role agent lists its own
    wallet, even if it is archived.
    """
    return await wallets.page(call.service, call.principal, query)


@operation("GET /v1/wallets/{wallet_id}", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def get_wallet(call: Call) -> WalletDetail:
    """Get a wallet."""
    return wallets.shown(await wallets.find(call.service, call.principal.org, call.path("wallet_id")))


@operation("GET /v1/wallets/{wallet_id}/sol", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def get_wallet_sol(call: Call) -> WalletSol:
    """Get the SOL that a wallet costs.

    Shows the cost of its transactions to the service's fee payer, and the limits of that cost.
    """
    return await wallets.sol(call.service, call.principal.org, call.path("wallet_id"))


@operation(
    "PATCH /v1/wallets/{wallet_id}",
    roles=OPERATORS,
    errors=(*_CHANGING, "policy_not_found", "budget_not_found", "budget_frozen", "wallet_frozen", "approvals_missing"),
    brakes=True,
    signable=True,
)
async def update_wallet(call: Call, body: UpdateWallet) -> WalletDetail:
    """Update, freeze or unfreeze a wallet.

    Changes label, tags, policy and budget. An operator's key can attach a policy and put a wallet into its first
    budget, unless `authority_attaches` of the organisation is true: then both need an admin's key. Only an admin's key
    can move the wallet to another budget, or take it out by setting `budgetId` to null. Set `status` to `frozen` to
    freeze the wallet and to `active` to unfreeze it. Lifting a manual freeze needs an admin's key. A freeze overtakes
    waiting payments: a payment that has not been sent yet is never sent. To attach a policy with weaker `approvals`,
    several people must agree in the dashboard, or the authority must sign the change with `?sign=offline`.
    """
    return await wallets.update(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation(
    "DELETE /v1/wallets/{wallet_id}",
    roles=OPERATORS,
    errors=(*_CHANGING, "wallet_not_empty", "wallet_receives_escrows"),
)
async def archive_wallet(call: Call, body: ArchiveWallet) -> WalletDetail:
    """Archive a wallet.

    The wallet must hold no USDC and have no open escrows or allowances. Its history is kept, and its agent id cannot be
    used again. Its session ends, so it can no longer complete or dispute escrows that it receives. While it receives
    open escrows, the request is refused unless `acceptIncomingEscrows` is true.
    """
    return await archiving.archive(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation("POST /v1/wallets/{wallet_id}/fund", roles=OPERATORS, errors=_FUNDING)
async def fund_wallet(call: Call, body: FundWallet) -> Funded:
    """Fund a wallet from the reserve."""
    return await funding.fund(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation("POST /v1/wallets/fund-batch", roles=OPERATORS, errors=_FUNDING)
async def fund_wallets(call: Call, body: FundWallets) -> FundedBatch:
    """Fund several wallets from the reserve.

    Funds all of them or none, in one transaction. A request may have only as many allocations as fit into a
    transaction.
    """
    return await funding.fund_batch(call.service, call.principal, call.claim, body)


@operation(
    "POST /v1/wallets/{wallet_id}/withdraw",
    roles=OPERATORS,
    errors=("invalid_amount", "wallet_not_found", "withdrawal_exceeds_balance", "transaction_failed"),
)
async def withdraw_from_wallet(call: Call, body: WithdrawFromWallet) -> Withdrawn:
    """Withdraw USDC from a wallet to the reserve.

    `amount` is a decimal string or `all`. Also works for frozen and archived wallets.
    """
    return await funding.withdraw(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation(
    "POST /v1/wallets/{wallet_id}/forget-recipient",
    roles=OPERATORS,
    errors=(*_CHANGING, "recipient_not_found", "invalid_recipient"),
)
async def forget_recipient(call: Call, body: ForgetRecipient) -> WalletDetail:
    """Declare a recipient unknown to a wallet.

    The policy's `newRecipientCap` then applies to the recipient as if it had never been paid.
    """
    return await forgetting.forget(call.service, call.principal, call.claim, call.path("wallet_id"), body)


@operation("POST /v1/wallets/{wallet_id}/rotate-token", roles=PAYERS, errors=_CHANGING, session=True, secret=True)
async def rotate_session_token(call: Call, body: RotateToken) -> SessionToken:
    """Rotate the session token.

    Revokes the current token and issues a new one. The token contains the session's signing key. Only this response and
    its replays contain it. An operator issues the first token. A key with the role agent must send the current token.
    The agent's new token never outlives the last one that an operator issued, regardless of `ttlSeconds`. An agent that
    lost the response repeats the request with the same idempotency key and API key, even if its current token no longer
    works.
    """
    return await sessions.rotate(
        call.service, call.principal, call.claim, call.path("wallet_id"), body, call.session_token
    )
