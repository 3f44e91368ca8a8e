"""The response with a transaction for the organisation's authority to sign offline."""

from typing import Annotated, Literal

from starlette.requests import Request

from app.api.fields import Address, Base64, ReadFrom, ResponseBody, Time, TransactionId, example
from app.core.errors import RequestError, UnavailableError
from app.store.attempts import Attempt
from app.store.unsigned_transactions import UnsignedTransaction, unsigned_transaction
from app.submission.context import Service


class AwaitingSignature(ResponseBody):
    """A transaction that waits for the signature of the organisation's authority.

    `accounts` has the contents of the program's accounts and token accounts that the transaction names, by address and
    in base64, as the service has read them.
    """

    id: Annotated[TransactionId, ReadFrom("tx_id")]
    """The transaction's id. It stays the same after sending."""
    status: Literal["awaiting_signature"]
    """The status, always `awaiting_signature`."""
    type: Annotated[str, example("payment")]
    """The kind of change."""
    object: Annotated[str | None, ReadFrom("subject"), example("wal_VDycjSYafbJkJfSRKajygt")]
    """The id of the changed object, such as a wallet or a policy. Null if there is none."""
    organization_address: Annotated[Address, ReadFrom("org"), example("6sfaqKosKfqQuVk3A6hD8Muh2cqqFfSNpc4vHrVJoEHT")]
    """The address of the organisation."""
    signer: Annotated[Address, example("6sfaqKosKfqQuVk3A6hD8Muh2cqqFfSNpc4vHrVJoEHT")]
    """The address of the authority that must sign."""
    nonce_account: Annotated[Address, example("HXtBm8XZbxaTt41uqaKhwUAa6Z1aPyvJdsZVENiWsetg")]
    """The nonce account. The transaction uses its nonce instead of a blockhash."""
    transaction: Annotated[Base64, ReadFrom("raw"), example("AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==")]
    """The unsigned transaction in base64."""
    accounts: Annotated[dict[str, str], example({"GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2": "AQAAAA=="})]
    """The contents of the program's accounts and token accounts that the transaction names, by address and in base64,
    as the service has read them. `agent-vault sign` shows old values from these contents as claims, never as facts.
    """
    created_at: Time
    """The time when the transaction was created."""
    expires_at: Time
    """The time when the transaction becomes void."""


def signs_offline(request: Request) -> bool:
    """Return True if the request asks for a transaction to sign offline.

    Raises ``invalid_request`` for any other query.
    """
    given = request.query_params.multi_items()
    if given not in ([], [("sign", "offline")]):
        raise RequestError("invalid_request", "sign: must be `offline`. This request takes no other query parameter.")
    return bool(given)


async def awaiting_signature(service: Service, attempt: Attempt) -> AwaitingSignature:
    """Return the response with the transaction of an attempt that waits for a signature.

    Raises ``chain_unavailable`` if the attempt has no unsigned transaction.
    """
    found = await service.db.read(lambda conn: unsigned_transaction(conn, attempt.org, attempt.tx_id))
    if found is None:
        raise UnavailableError("chain_unavailable")
    return shown_unsigned(found, attempt)


def shown_unsigned(found: UnsignedTransaction, attempt: Attempt) -> AwaitingSignature:
    """Return an unsigned transaction as clients see it."""
    return AwaitingSignature.of(attempt, signer=found.authority, accounts=found.accounts, expires_at=found.expires_at)
