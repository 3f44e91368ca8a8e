"""Request and response bodies of escrows."""

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Amount,
    ChainTime,
    ChangeBody,
    Confirmation,
    Currency,
    Digest,
    EscrowId,
    HexHash,
    ListResponse,
    Memo,
    Page,
    ReadFrom,
    Recipient,
    RecipientShown,
    ResponseBody,
    Signature,
    Text,
    Time,
    TransactionId,
    Usdc,
    WalletId,
    WalletRef,
    example,
)
from app.api.money_body import MoneyBody
from app.chain.escrow_instructions import PROOF_KINDS

#: Minimum, maximum and default seconds from the creation to the deadline. The program has the same minimum and maximum.
MIN_TIMEOUT, MAX_TIMEOUT, DEFAULT_TIMEOUT = 60, 2_592_000, 3_600

ProofType = Literal["output_hash", "signed_attestation", "webhook_callback"]
EscrowStatus = Literal["pending", "locked", "completed", "released", "refunded", "disputed", "settled"]

SHA256 = r"^sha256:[0-9a-fA-F]{64}$"
_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://\S+$"
_MAX_URL = 2_048


def _sha256(value: str) -> str:
    if not re.fullmatch(SHA256, value):
        raise PydanticCustomError("sha256", "must be sha256: and 64 hexadecimal digits")
    return value.lower()


def _url(value: str) -> str:
    if not re.fullmatch(_URL, value):
        raise PydanticCustomError("url", "must be a URL such as https://example.com/output")
    return value


#: A hash, in lower case to make it comparable.
Sha256 = Annotated[Digest, AfterValidator(_sha256), Field(json_schema_extra={"pattern": SHA256})]
Url = Annotated[
    str,
    StringConstraints(max_length=_MAX_URL),
    AfterValidator(_url),
    WithJsonSchema({"type": "string", "maxLength": _MAX_URL, "pattern": _URL}),
]
#: The maximum is longer than any valid proof. A malformed proof within it is refused with `invalid_proof`.
Proof = Annotated[Digest, StringConstraints(max_length=512)]


def _proof_type(kind: int | str | None) -> str | None:
    return PROOF_KINDS[kind] if isinstance(kind, int) else kind


def _proof_types(kinds: int | list[str]) -> list[str]:
    return kinds if isinstance(kinds, list) else [name for kind, name in enumerate(PROOF_KINDS) if kinds >> kind & 1]


class CreateEscrow(MoneyBody):
    """Body of an escrow's creation. `toWallet` is a wallet of the organisation or a chain address, but not a domain."""

    from_wallet: WalletRef
    """The paying wallet."""
    to_wallet: Recipient
    """The recipient: a wallet id or an address."""
    amount: Amount
    """The amount in USDC: a decimal string with at most 6 decimals, such as `4.50`."""
    currency: Literal["USDC"]
    """The currency, always `USDC`."""
    task_description: Annotated[Text, example("Translate the manual into French.")]
    """The description of the task. Its hash is stored on the chain."""
    timeout_seconds: Annotated[int, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT), example(3600)] = DEFAULT_TIMEOUT
    """The number of seconds until the deadline, 60 to 2,592,000."""
    expected_output_hash: Sha256 | None = None
    """The hash that the output must have. Null accepts any output."""
    proof_types: Annotated[list[ProofType], Field(min_length=1, max_length=3)] = Field(
        default=["output_hash", "signed_attestation", "webhook_callback"]
    )
    """The accepted kinds of proof."""
    memo: Memo | None = None
    """A note. It is not stored on the chain."""
    allow_unverified_recipient: Confirmation = False
    """True to accept a receiving address without a known owner, which is otherwise refused with `recipient_unverified`.
    With an agent's key, the policy's `allowedRecipients` must also list the address.
    """


class CompleteEscrow(ChangeBody):
    """Body of a completion.

    For `output_hash`, `proof` is `sha256:<hex>` of the output. For the other types it is base64 of the 64-byte
    signature followed by the 32-byte hash of the output.
    """

    proof_type: ProofType
    """The kind of proof. `/docs/reference` explains each kind."""
    proof: Proof
    """The proof, in the form that its kind requires."""
    output_url: Annotated[Url | None, example("https://example.com/outputs/42")] = None
    """The `http` or `https` URL of the output."""


class DisputeEscrow(ChangeBody):
    """Body of a dispute. `walletId` names the side that an operator's key acts for.

    By default, this is the wallet of the session token or, without a token, the paying wallet. Without a token, the
    operator signs, and the chain counts the dispute as the paying side's only one.
    """

    reason: Annotated[Text, example("The output is empty.")]
    """The reason for the dispute. Its hash is stored on the chain."""
    evidence: Sha256 | None = None
    """The hash of the evidence: `sha256:` and 64 hexadecimal digits."""
    wallet_id: WalletRef | None = None
    """The side that an operator's key acts for; by default the wallet of the session token, else the paying wallet."""


class WithdrawDispute(ChangeBody):
    """Body of a dispute's withdrawal.

    If an operator's key is used with a session token, `walletId` names the token's side. Without a token, the operator
    withdraws the dispute of either wallet.
    """

    wallet_id: WalletRef | None = None
    """With an operator's key and a session token, the wallet of that token. Without a token, the operator withdraws the
    dispute of either wallet.
    """


class ResolveDispute(ChangeBody):
    """Body of the arbiter's decision. `releasedAmount` is the receiver's share of a split."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"decision": {"const": "split"}}},
            "then": {"required": ["releasedAmount"], "properties": {"releasedAmount": {"type": "string"}}},
            "else": {"properties": {"releasedAmount": {"type": "null"}}},
        }
    )

    decision: Annotated[Literal["release", "refund", "split"], example("split")]
    """The decision: `release`, `refund` or `split`."""
    released_amount: Annotated[Amount | None, example("5.00")] = None
    """The receiver's share of a split. Required for `split`, and refused for other decisions."""

    @model_validator(mode="after")
    def _splits_with_an_amount(self) -> "ResolveDispute":
        if (self.decision == "split") != (self.released_amount is not None):
            raise PydanticCustomError(
                "released_amount", "releasedAmount is required if the decision is 'split', and not allowed otherwise"
            )
        return self


class ListEscrows(Page):
    """Query of the escrows. `walletId` is the paying or the receiving wallet."""

    wallet_id: WalletRef | None = None
    """The paying or the receiving wallet."""
    status: EscrowStatus | None = None
    """The status of the escrows. `/docs/reference` explains each status."""


class Dispute(ResponseBody):
    """A dispute. `raised_by` is a wallet, or an address if the dispute was raised without the service."""

    reason: Annotated[str | None, ReadFrom("dispute_reason"), example("The output is empty.")]
    """The reason as in the request. Null if the dispute was raised without the service."""
    evidence: Annotated[HexHash | None, ReadFrom("evidence_hash")]
    """The hash of the evidence. Null if none was given."""
    raised_by: Annotated[str | None, example("wal_VDycjSYafbJkJfSRKajygt")]
    """The disputing side: its wallet, or its address if it raised the dispute without the service."""
    raised_at: Time
    """The time of the dispute."""
    tx_signature: Annotated[Signature, ReadFrom("dispute_signature")]
    """The signature of the transaction that raised the dispute."""


class Escrow(ResponseBody):
    """An escrow and its state."""

    escrow_id: EscrowId
    """The escrow's id. It begins with `escrow_`."""
    id: Annotated[EscrowId, ReadFrom("escrow_id")]
    """The escrow's id, equal to `escrow_id`."""
    from_wallet: Annotated[WalletId, ReadFrom("wallet_id")]
    """The paying wallet."""
    to_wallet: RecipientShown
    """The receiving wallet or address."""
    amount: Usdc
    """The locked amount and its currency."""
    currency: Currency
    """The currency, always `USDC`."""
    status: EscrowStatus
    """The status of the escrow. `/docs/reference` explains each status."""
    chain_address: Annotated[str, ReadFrom("address"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The escrow's own address on the chain."""
    expires_at: Annotated[ChainTime, ReadFrom("deadline")]
    """The deadline by the chain's clock: an hour after the creation, rounded up to a whole second, unless the request
    sets another.
    """
    created_at: Time
    """The creation time by the chain's clock."""
    tx_id: TransactionId | None
    """The id of the transaction that locked the money."""
    tx_signature: Annotated[Signature | None, ReadFrom("signature")]
    """The signature of the transaction that locked the money."""
    task_hash: HexHash
    """The hash of the task, stored on the chain."""
    task_description: Annotated[str | None, example("Translate the manual into French.")]
    """The description of the task, stored in the service."""
    expected_output_hash: Annotated[HexHash | None, ReadFrom("expected_output")]
    """The hash that the output must have. Null if none was agreed."""
    proof_types: Annotated[list[ProofType], BeforeValidator(_proof_types), ReadFrom("proof_kinds")]
    """The accepted kinds of proof."""
    released_amount: Annotated[Usdc | None, ReadFrom("released")]
    """The amount that the settlement paid to the receiver."""
    refunded_amount: Annotated[Usdc | None, ReadFrom("refunded")]
    """The amount that the settlement returned to the sender."""
    surplus_amount: Annotated[Usdc | None, ReadFrom("surplus")]
    """The amount that others had sent to the escrow. It was paid to the sender, or to the receiver if the sender could
    not be paid.
    """
    proof_type: Annotated[ProofType | None, BeforeValidator(_proof_type), ReadFrom("proof_kind")]
    """The kind of the submitted proof."""
    output_hash: HexHash | None
    """The output's hash in the submitted proof."""
    output_url: Annotated[str | None, example("https://example.com/outputs/42")]
    """The output's URL in the submitted proof."""
    dispute: Dispute | None
    """The dispute, with its party and reason. Null if there is none."""
    settled_at: Time | None
    """The time of the settlement."""
    settlement_signature: Signature | None
    """The signature of the transaction that settled the escrow."""


class EscrowPage(ListResponse[Escrow]):
    """One page of escrows, newest first."""
