"""Request and response bodies of transactions signed elsewhere."""

from typing import Annotated, Literal

from pydantic import Field, RootModel

from app.api.fields import ChangeBody, ResponseBody, TransactionId, example
from app.api.signing import AwaitingSignature
from app.budgets.models import Budget
from app.organisations.models import Organization, PausedOrganisation
from app.policies.models import Policy
from app.recipients.models import RegisteredRecipient
from app.wallets.models import WalletDetail

MAX_TEXT = 1644
"""Number of base64 characters of the largest transaction (1,232 bytes)."""


class SendSigned(ChangeBody):
    """Body with a signed transaction in base64."""

    transaction: Annotated[str, example("AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==")] = Field(
        min_length=1, max_length=MAX_TEXT
    )
    """The signed transaction in base64, as written by `agent-vault sign`."""


class UnsignedTransactions(ResponseBody):
    """The transactions awaiting a signature, oldest first."""

    data: list[AwaitingSignature]
    """The transactions."""


class WithdrawnTransaction(ResponseBody):
    """A withdrawn transaction. The service will not sign or send it.

    If the request submitted a signed transaction that only advances the nonce, `id` is the id of that transaction.
    """

    id: TransactionId
    """The transaction's id."""
    status: Literal["withdrawn"]
    """The status, always `withdrawn`."""


class ChangeMade(
    RootModel[
        Policy | Budget | WalletDetail | RegisteredRecipient | Organization | PausedOrganisation | WithdrawnTransaction
    ]
):
    """The response to a signed transaction: the response to the change that the transaction makes."""
