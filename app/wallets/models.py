"""Request and response bodies of wallets: creation, changes, funding and session tokens."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Amount,
    AmountOrAll,
    Body,
    BudgetId,
    IdempotencyKey,
    Identifier,
    ListResponse,
    Name,
    NewIdentifier,
    Page,
    PolicyId,
    ReadFrom,
    ResponseBody,
    TagList,
    Tags,
    TextOrEmpty,
    Time,
    TransactionId,
    Usdc,
    WalletId,
)
from app.api.money_body import MoneyBody
from app.api.partial_body import PartialBody, UpdateBody

WalletStatus = Literal["active", "idle", "policy_violation", "frozen", "unfunded", "archived"]

#: Lifetime of a session token, in seconds.
MIN_TTL, MAX_TTL, DEFAULT_TTL = 60, 2_592_000, 86_400

#: Maximum number of wallets that one transaction can fund. An eighth would exceed the 1,232 bytes that the chain
#: accepts.
MAX_ALLOCATIONS = 7


class CreateWallet(Body):
    """Body of a wallet creation."""

    agent_id: NewIdentifier
    label: Name
    policy_id: Identifier
    budget_id: Identifier | None = None
    tags: Tags = Field(default=[])
    owner_org: Identifier | None = None
    idempotency_key: IdempotencyKey | None = None


class UpdateWallet(PartialBody, UpdateBody):
    """Body of a wallet update. An omitted field keeps its value; `null` takes the wallet out of its budget."""

    label: Name | None = None
    policy_id: Identifier | None = None
    budget_id: Identifier | None = None
    tags: Tags | None = None
    status: Literal["frozen", "active"] | None = None
    idempotency_key: IdempotencyKey | None = None

    @property
    def brakes(self) -> bool:
        """True if the update freezes the wallet."""
        return self.status == "frozen"

    @property
    def moves(self) -> bool:
        """True if the update sets the budget."""
        return "budget_id" in self.model_fields_set


class FundWallet(MoneyBody):
    """Body of a funding from the reserve."""

    amount: Amount
    currency: Literal["USDC"] = "USDC"
    idempotency_key: IdempotencyKey | None = None


class Allocation(Body):
    """One wallet of a batch and its amount."""

    wallet_id: Identifier
    amount: Amount


def _wallets_differ(allocations: list[Allocation]) -> list[Allocation]:
    if len({one.wallet_id for one in allocations}) < len(allocations):
        raise PydanticCustomError("repeated_wallet", "must name each wallet once")
    return allocations


class FundWallets(MoneyBody):
    """Body of a funding of several wallets from the reserve."""

    allocations: Annotated[
        list[Allocation], Field(min_length=1, max_length=MAX_ALLOCATIONS), AfterValidator(_wallets_differ)
    ]
    currency: Literal["USDC"] = "USDC"
    idempotency_key: IdempotencyKey | None = None


class WithdrawFromWallet(MoneyBody):
    """Body of a withdrawal to the reserve."""

    amount: AmountOrAll
    currency: Literal["USDC"] = "USDC"
    idempotency_key: IdempotencyKey | None = None


class RotateToken(Body):
    """Body of a rotation of the session token."""

    ttl_seconds: Annotated[int, Field(ge=MIN_TTL, le=MAX_TTL)] = DEFAULT_TTL
    idempotency_key: IdempotencyKey | None = None


class ListWallets(Page):
    """Query of the wallet list. `tags` is comma-separated; a wallet must have all of them."""

    status: WalletStatus | None = None
    tags: TagList = Field(default=[])


class AttachedPolicy(ResponseBody):
    """The attached policy, as shown with a wallet."""

    policy_id: PolicyId
    id: Annotated[PolicyId, ReadFrom("policy_id")]
    name: str
    max_per_tx: Annotated[Usdc | None, ReadFrom("rules.max_per_tx")]
    max_per_day: Annotated[Usdc | None, ReadFrom("rules.max_per_day")]
    max_per_month: Annotated[Usdc | None, ReadFrom("rules.max_per_month")]


class Wallet(ResponseBody):
    """A wallet in lists and in the response to its creation."""

    wallet_id: WalletId
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    chain_address: Annotated[str, ReadFrom("vault")]
    agent_id: TextOrEmpty
    label: TextOrEmpty
    usdc_balance: Annotated[Usdc, ReadFrom("balance")]
    policy: AttachedPolicy
    budget_id: BudgetId | None
    warnings: list[str]
    status: WalletStatus
    tags: list[str]
    created_at: Time


class WalletDetail(Wallet):
    """A wallet in the responses to get, update and archive."""

    updated_at: Time
    last_transaction_at: Time | None


class WalletPage(ListResponse[Wallet]):
    """One page of wallets."""


class Funded(ResponseBody):
    """Response to a funding."""

    wallet_id: WalletId
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    tx_id: TransactionId
    tx_signature: str
    status: str
    funded_amount: Usdc
    usdc_balance: Annotated[Usdc, ReadFrom("balance")]
    org_balance_remaining: Usdc


class FundedBatch(ResponseBody):
    """Response to a funding of several wallets, in the order of the allocations."""

    funded: list[Funded]
    org_balance_remaining: Usdc
    tx_signature: str
    status: str


class Withdrawn(WalletDetail):
    """Response to a withdrawal: the wallet and the amount moved.

    While `transaction_status` is `pending`, the movement is not confirmed yet.
    """

    transaction_status: str
    tx_id: TransactionId
    tx_signature: str
    withdrawn_amount: Usdc
    org_balance_remaining: Usdc


class SessionToken(ResponseBody):
    """A new session token. Only this response and its replays to the same API key contain the token."""

    wallet_id: WalletId
    id: WalletId
    session_token: str
    expires_at: Time
