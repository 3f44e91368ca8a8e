"""Escrows: payments between agents, held until the work is proved."""

from app.access.auth import ADMINS, PAYERS, READERS_AND_AGENT
from app.api.operation import Call, operation
from app.escrows import service as escrows
from app.escrows import settlement
from app.escrows.models import (
    CompleteEscrow,
    CreateEscrow,
    DisputeEscrow,
    Escrow,
    EscrowPage,
    ListEscrows,
    ResolveDispute,
    WithdrawDispute,
)
from app.payments.expense_errors import SPENDING_ERRORS

_CHANGE = ("escrow_not_found", "escrow_already_settled", "transaction_failed")


@operation(
    "POST /v1/payments/a2a", tag="escrows", roles=PAYERS, errors=(*SPENDING_ERRORS, "too_many_escrows"), session=True
)
async def create_escrow(call: Call, body: CreateEscrow) -> Escrow:
    """Create an escrow.

    Locks the wallet's money for a task, if the wallet's policy permits. From then on, only the program can move the
    money. A proof of the completed work releases the money. Without a proof, the money is refunded after `expires_at`,
    unless the escrow is disputed. Responds once the money is locked, or with the status `pending` if that takes too
    long.
    """
    return await escrows.create(call, body)


@operation(
    "POST /v1/payments/a2a/{escrow_id}/complete",
    tag="escrows",
    roles=PAYERS,
    errors=(*_CHANGE, "invalid_proof", "invalid_recipient", "escrow_expired"),
    session=True,
)
async def complete_escrow(call: Call, body: CompleteEscrow) -> Escrow:
    """Submit a completion proof.

    A valid proof releases the escrow. An `output_hash` is the hash that the escrow expects, or any hash if the escrow
    expects none. Only a party or the operator may submit it. The other proofs are signatures. The signed message begins
    with `agent-vault:v2:` and the kind of proof. These raw bytes follow: the cluster's genesis hash, the program's
    address, the escrow's address, the task's hash and the output's hash. The receiving wallet's session key (or the
    receiving address) signs a `signed_attestation`, and the organisation's verifier signs a `webhook_callback`.
    """
    return await settlement.complete(call, call.path("escrow_id"), body)


@operation(
    "POST /v1/payments/a2a/{escrow_id}/dispute",
    tag="escrows",
    roles=PAYERS,
    errors=(*_CHANGE, "escrow_expired", "dispute_raised_before"),
    session=True,
)
async def dispute_escrow(call: Call, body: DisputeEscrow) -> Escrow:
    """Raise a dispute.

    Either side may raise one dispute before the deadline. The escrow then waits for the arbiter and is refunded after
    30 days without a decision. A side that withdraws its dispute cannot raise another. `reason` is required, `evidence`
    is optional. The chain records the hash of the reason, and the evidence, which is a hash itself.
    """
    return await settlement.dispute(call, call.path("escrow_id"), body)


@operation(
    "POST /v1/payments/a2a/{escrow_id}/dispute/withdraw",
    tag="escrows",
    roles=PAYERS,
    errors=(*_CHANGE, "escrow_not_disputed"),
    session=True,
)
async def withdraw_dispute(call: Call, body: WithdrawDispute) -> Escrow:
    """Withdraw a dispute.

    The party that raised the dispute may withdraw it. An operator may withdraw it for a wallet's side. The escrow is
    locked again. The new deadline leaves as much time as remained when the dispute was raised.
    """
    return await settlement.withdraw(call, call.path("escrow_id"), body)


@operation(
    "POST /v1/payments/a2a/{escrow_id}/resolve",
    tag="escrows",
    roles=ADMINS,
    errors=(*_CHANGE, "escrow_not_disputed", "invalid_amount", "authority_offline"),
)
async def resolve_dispute(call: Call, body: ResolveDispute) -> Escrow:
    """Decide a dispute.

    Releases, refunds or splits the locked money. After a split, the status is `settled`. The arbiter signs.
    """
    return await settlement.resolve(call.service, call.principal, call.claim, call.path("escrow_id"), body)


@operation("GET /v1/payments/a2a/{escrow_id}", tag="escrows", roles=READERS_AND_AGENT, errors=("escrow_not_found",))
async def get_escrow(call: Call) -> Escrow:
    """Get an escrow."""
    return await escrows.get(call.service, call.principal, call.path("escrow_id"))


@operation("GET /v1/payments/a2a", tag="escrows", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def list_escrows(call: Call, query: ListEscrows) -> EscrowPage:
    """List escrows, newest first.

    `walletId` is the paying or the receiving wallet. A completion proof releases the money immediately, so no escrow is
    ever listed as `completed`.
    """
    return await escrows.page(call.service, call.principal, query)
