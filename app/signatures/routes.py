"""Routes of transactions that are signed elsewhere."""

from starlette.routing import Route

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


@operation(tag="signing", roles=ADMINS, answer=UnsignedTransactions)
async def list_unsigned_transactions(call: Call) -> UnsignedTransactions:
    """List the transactions that wait for a signature.

    Oldest first. Each is void 7 days after its creation.
    """
    return await signatures.list_all(call.service, call.principal)


@operation(tag="signing", roles=ADMINS, body=SendSigned, answer=ChangeMade, errors=_LANDING, changes=True)
async def send_signed_transaction(call: Call, body: SendSigned) -> ChangeMade:
    """Send a transaction that was signed elsewhere.

    Takes what `agent-vault sign` wrote: the bytes that the service made, signed by the organisation's authority. The
    service adds its own signatures, simulates the transaction, stores and sends it, and answers as the change itself
    would. The same transaction sent again gets the same outcome.
    """
    return await signatures.send(call.service, call.principal, call.claim, body.transaction)


@operation(
    tag="signing",
    roles=ADMINS,
    body=EmptyBody,
    answer=WithdrawnTransaction,
    errors=("unsigned_transaction_not_found", "unsigned_transaction_void", "transaction_failed"),
    changes=True,
    signable=True,
)
async def withdraw_unsigned_transaction(call: Call, _body: EmptyBody) -> WithdrawnTransaction:
    """Withdraw a transaction that waits for a signature.

    The service does not complete it any more: without the fee payer's signature it cannot land. Its nonce is advanced
    if the authority's key is here, so that it cannot land even with that signature; with `sign=offline` the advance is
    answered as a transaction to sign. Otherwise the next transaction on its nonce advances it.
    """
    return await signatures.withdraw(call.service, call.principal, call.claim, call.path("id"))


routes = [
    Route("/v1/signed-transactions", list_unsigned_transactions, methods=["GET"]),
    Route("/v1/signed-transactions", send_signed_transaction, methods=["POST"]),
    Route("/v1/signed-transactions/{id}", withdraw_unsigned_transaction, methods=["DELETE"]),
]
