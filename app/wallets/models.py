"""Request and response bodies of wallets: creation, changes, funding and session tokens."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Amount,
    AmountOrAll,
    Body,
    BudgetId,
    BudgetRef,
    ChangeBody,
    Identifier,
    ListResponse,
    Name,
    NewIdentifier,
    Page,
    PolicyId,
    PolicyRef,
    ReadFrom,
    Recipient,
    ResponseBody,
    Signature,
    TagList,
    Tags,
    TextOrEmpty,
    Time,
    TransactionId,
    Usdc,
    WalletId,
    WalletRef,
    Warnings,
    example,
)
from app.api.money_body import MoneyBody
from app.api.partial_body import PartialBody, UpdateBody
from app.organisations.models import Sol

WalletStatus = Literal["active", "idle", "policy_violation", "frozen", "unfunded", "archived"]

#: Lifetime of a session token, in seconds.
MIN_TTL, MAX_TTL, DEFAULT_TTL = 60, 2_592_000, 86_400

#: Maximum number of wallets that one transaction can fund. Eight would exceed the 1,232 bytes that the chain accepts.
MAX_ALLOCATIONS = 7


class CreateWallet(ChangeBody):
    """Body of a wallet creation."""

    agent_id: NewIdentifier
    """The client's name for the agent. It must be unique, without spaces at the beginning or end."""
    label: Name
    """A display name for people."""
    policy_id: PolicyRef
    """The policy or preset to attach."""
    budget_id: BudgetRef | None = None
    """The budget to share with other wallets."""
    tags: Tags = Field(default=[])
    """Tags for finding the wallet in lists."""
    owner_org: Annotated[Identifier, example("acme")] | None = None
    """The organisation of the API key. Any other organisation is refused."""


class UpdateWallet(PartialBody, UpdateBody):
    """Body of a wallet update.

    An omitted field keeps its value. `budgetId` with the value `null` takes the wallet out of its budget.
    """

    label: Name | None = None
    """The new display name. Null is refused."""
    policy_id: PolicyRef | None = None
    """The policy or preset to attach. Null is refused."""
    budget_id: BudgetRef | None = None
    """The budget to share. Null takes the wallet out of its budget; that needs an admin's key."""
    tags: Tags | None = None
    """The new tags. Null is refused."""
    status: Annotated[Literal["frozen", "active"] | None, example("frozen")] = None
    """The new status: only `frozen` or `active`."""

    @property
    def brakes(self) -> bool:
        """True if the update freezes the wallet."""
        return self.status == "frozen"

    @property
    def moves(self) -> bool:
        """True if the update sets the budget."""
        return "budget_id" in self.model_fields_set


class ArchiveWallet(ChangeBody):
    """Body of a request to archive a wallet."""

    accept_incoming_escrows: bool = False
    """True to archive the wallet although open escrows pay it."""


class ForgetRecipient(ChangeBody):
    """Body of a request to declare a recipient unknown to a wallet."""

    recipient: Recipient
    """The recipient."""


class FundWallet(MoneyBody):
    """Body of a funding from the reserve."""

    amount: Amount
    """The amount."""
    currency: Literal["USDC"] = "USDC"
    """The currency, always `USDC`."""


class Allocation(Body):
    """One wallet of a batch and its amount."""

    wallet_id: WalletRef
    """The wallet to fund. Each wallet may appear only once."""
    amount: Amount
    """The amount for this wallet in USDC, as a decimal string."""


def _wallets_differ(allocations: list[Allocation]) -> list[Allocation]:
    if len({one.wallet_id for one in allocations}) < len(allocations):
        raise PydanticCustomError("repeated_wallet", "must name each wallet once")
    return allocations


class FundWallets(MoneyBody):
    """Body of a funding of several wallets from the reserve."""

    allocations: Annotated[
        list[Allocation], Field(min_length=1, max_length=MAX_ALLOCATIONS), AfterValidator(_wallets_differ)
    ]
    """The wallets and their amounts: `walletId` and `amount`, once for each wallet."""
    currency: Literal["USDC"] = "USDC"
    """The currency, always `USDC`."""


class WithdrawFromWallet(MoneyBody):
    """Body of a withdrawal to the reserve."""

    amount: AmountOrAll
    """The amount, or `all`."""
    currency: Literal["USDC"] = "USDC"
    """The currency, always `USDC`."""


class RotateToken(ChangeBody):
    """Body of a rotation of the session token."""

    ttl_seconds: Annotated[int, Field(ge=MIN_TTL, le=MAX_TTL), example(3600)] = DEFAULT_TTL
    """The lifetime of the token in seconds."""


class ListWallets(Page):
    """Query of the wallet list. `tags` is comma-separated; a wallet must have all of them."""

    status: WalletStatus | None = None
    """The status of the wallets. `/docs/reference` explains each status."""
    tags: TagList = Field(default=[])
    """Tags, separated by commas, none of them empty. A wallet must have all of them."""


class AttachedPolicy(ResponseBody):
    """The attached policy, as shown with a wallet."""

    policy_id: PolicyId
    """The policy's id, which begins with `pol_`. `id` and `policy_id` are equal."""
    id: Annotated[PolicyId, ReadFrom("policy_id")]
    """The policy's id, which begins with `pol_`. `id` and `policy_id` are equal."""
    name: Annotated[str, example("Shopping")]
    """The name as last set."""
    max_per_tx: Annotated[Usdc | None, ReadFrom("rules.max_per_tx")]
    """The maximum of one payment. Null means no limit; zero is a limit."""
    max_per_day: Annotated[Usdc | None, ReadFrom("rules.max_per_day")]
    """The maximum in any 24 hours."""
    max_per_month: Annotated[Usdc | None, ReadFrom("rules.max_per_month")]
    """The maximum in a UTC calendar month."""


class Wallet(ResponseBody):
    """A wallet in lists and in the response to its creation.

    `held_amount` is the money of its outstanding allowances. It counts towards the daily and monthly limits until each
    allowance is settled.
    """

    wallet_id: WalletId
    """The wallet's id, which begins with `wal_`. `id` and `wallet_id` are equal."""
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    """The wallet's id, which begins with `wal_`. `id` and `wallet_id` are equal."""
    chain_address: Annotated[str, ReadFrom("vault"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The address of the vault on the chain."""
    agent_id: Annotated[TextOrEmpty, example("agent-7")]
    """The client's name for the agent. It is unique in the organisation, even after archiving."""
    label: Annotated[TextOrEmpty, example("Shopping agent")]
    """The label as last set."""
    usdc_balance: Annotated[Usdc, ReadFrom("balance")]
    """The vault's balance, including direct deposits; `0.00` at first."""
    held_amount: Annotated[Usdc, ReadFrom("held")]
    """The money of the wallet's outstanding allowances.

    It is not part of the balance. It counts towards the daily and monthly limits until each allowance is settled.
    """
    policy: AttachedPolicy
    """The attached policy with its three amount limits."""
    budget_id: BudgetId | None
    """The id of the budget that the wallet shares; null if none."""
    warnings: Warnings
    """A warning if this one wallet might use up the whole budget, because its policy lacks `max_per_day` or
    `velocity_cap`.
    """
    status: WalletStatus
    """The status of the wallet. `/docs/reference` explains each status."""
    tags: Annotated[list[str], example(["shop"])]
    """The tags as last set."""
    created_at: Time
    """The time of the creation request."""


class WalletDetail(Wallet):
    """A wallet in the responses to get, update and archive."""

    updated_at: Time
    """The time of the last change."""
    last_transaction_at: Time | None
    """The time of the last movement of money; null if there was none."""


class WalletSol(ResponseBody):
    """The SOL that the service's fee payer spends for a wallet, and its limits; null means no limit.

    `spent_today` counts fees, and rent that does not return, until `resets_at`, the next midnight UTC. `held` is the
    rent in open escrows and allowances. The rent returns when they are settled.
    """

    wallet_id: WalletId
    """The wallet."""
    spent_today: Sol
    """The SOL that the wallet's transactions have cost since midnight UTC: fees, and rent that does not return."""
    sol_per_wallet_day: Sol | None
    """The limit of `spent_today`. Null means no limit."""
    resets_at: Time
    """The next midnight UTC, when `spent_today` begins again at 0."""
    held: Sol
    """The rent in the wallet's open escrows and allowances. The rent returns when they are settled."""
    sol_held_per_wallet: Sol | None
    """The limit of `held`. Null means no limit."""


class WalletPage(ListResponse[Wallet]):
    """One page of wallets."""


class Funded(ResponseBody):
    """Response to a funding."""

    wallet_id: WalletId
    """The funded wallet."""
    id: Annotated[WalletId, ReadFrom("wallet_id")]
    """The funded wallet."""
    tx_id: TransactionId
    """The transaction of the funding."""
    tx_signature: Signature
    """The signature of the transaction."""
    status: Annotated[str, example("confirmed")]
    """The status of the transaction."""
    funded_amount: Usdc
    """The amount moved."""
    usdc_balance: Annotated[Usdc, ReadFrom("balance")]
    """The wallet's new balance."""
    org_balance_remaining: Usdc
    """The reserve's new balance."""


class FundedBatch(ResponseBody):
    """Response to a funding of several wallets, in the order of the allocations."""

    funded: list[Funded]
    """The funded wallets, in the order of the request."""
    org_balance_remaining: Usdc
    """The reserve's new balance."""
    tx_signature: Signature
    """The signature of the single transaction that funds all wallets."""
    status: Annotated[str, example("confirmed")]
    """The status of the transaction."""


class Withdrawn(WalletDetail):
    """Response to a withdrawal: the wallet and the amount moved.

    While `transaction_status` is `pending`, the movement is not confirmed yet.
    """

    transaction_status: Annotated[str, example("confirmed")]
    """The status of the withdrawal: `confirmed`, or `pending` while its outcome is unknown."""
    tx_id: TransactionId
    """The transaction of the withdrawal."""
    tx_signature: Signature
    """The signature of the transaction."""
    withdrawn_amount: Usdc
    """The amount that moves to the reserve."""
    org_balance_remaining: Usdc
    """The reserve's new balance."""


class SessionToken(ResponseBody):
    """A new session token. Only this response and its replays to the same API key contain the token."""

    wallet_id: WalletId
    """The wallet of the token."""
    id: WalletId
    """The wallet of the token."""
    session_token: Annotated[str, example("avs_7mVwGKnUZuVnbH2WuJbSyRhZ2HrYVXpXRvMQqsQqWk3Z")]
    """The session token. Only this response and its replays show it. Its holder can sign for the wallet."""
    expires_at: Time
    """The expiry of the token, by the chain's clock."""
