"""Transactions signed elsewhere as requests and answers."""

from typing import Literal

from pydantic import Field, RootModel

from app.api.fields import Body, IdempotencyKey, ResponseBody, TransactionId
from app.api.signing import AwaitingSignature
from app.budgets.models import Budget
from app.organisations.models import Organization, PausedOrganisation
from app.policies.models import Policy
from app.recipients.models import RegisteredRecipient
from app.wallets.models import WalletDetail

MAX_TEXT = 1644
"""Characters of the largest transaction in base64."""


class SendSigned(Body):
    """Body with a signed transaction in base64."""

    transaction: str = Field(min_length=1, max_length=MAX_TEXT)
    idempotency_key: IdempotencyKey | None = None


class UnsignedTransactions(ResponseBody):
    """The transactions that wait for a signature, oldest first."""

    data: list[AwaitingSignature]


class WithdrawnTransaction(ResponseBody):
    """A transaction that is no longer completed, or an advance of its nonce that landed."""

    id: TransactionId
    status: Literal["withdrawn"]


class ChangeMade(
    RootModel[
        Policy | Budget | WalletDetail | RegisteredRecipient | Organization | PausedOrganisation | WithdrawnTransaction
    ]
):
    """What the change itself answers."""
