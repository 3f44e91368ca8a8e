"""Routes of transactions signed elsewhere."""

from app.access.auth import ADMINS
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.signatures import service as signatures
from app.signatures.models import ChangeMade, SendSigned, UnsignedTransactions, WithdrawnTransaction

_LANDING = (
    "unsigned_transaction_not_found",
    "invalid_signature",
    "unsigned_transaction_void",
    "version_conflict",
    "policy_not_found",
    "policy_immutable",
    "policy_in_use",
    "wallet_not_found",
    "wallet_archived",
    "wallet_frozen",
    "recipient_not_found",
    "invalid_amount",
    "invalid_recipient",
    "org_insufficient_balance",
    "transaction_failed",
)


@operation("GET /v1/signed-transactions", tag="signing", roles=ADMINS)
async def list_unsigned_transactions(call: Call) -> UnsignedTransactions:
    """List the transactions that wait for a signature.

    Oldest first. A transaction becomes void 7 days after its creation.
    """
    return await signatures.list_all(call.service, call.principal)


@operation("POST /v1/signed-transactions", tag="signing", roles=ADMINS, errors=_LANDING)
async def send_signed_transaction(call: Call, body: SendSigned) -> ChangeMade:
    """Send a transaction that was signed elsewhere.

    The body is the output of `agent-vault sign`: the service's transaction, signed by the organisation's authority. The
    service adds its own signatures, simulates the transaction, stores and sends it. The response is the same as if the
    change had been made directly. Sending the same transaction again returns the same outcome.
    """
    return await signatures.send(call.service, call.principal, call.claim, body.transaction)


@operation(
    "DELETE /v1/signed-transactions/{id}",
    tag="signing",
    roles=ADMINS,
    errors=("unsigned_transaction_not_found", "unsigned_transaction_void", "transaction_failed"),
    brakes=True,
    signable=True,
)
async def withdraw_unsigned_transaction(call: Call, _body: EmptyBody) -> WithdrawnTransaction:
    """Withdraw a transaction that waits for a signature.

    The service will not sign or send it. Without the fee payer's signature, the transaction cannot land. If
    the service has the authority's key, it also advances the nonce, so that the transaction cannot land even with that
    signature. With `sign=offline`, the response is the advance of the nonce, as a transaction to sign. Otherwise the
    next transaction on the same nonce account advances the nonce.
    """
    return await signatures.withdraw(call.service, call.principal, call.claim, call.path("id"))
