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
    Body,
    ChainTime,
    EscrowId,
    IdempotencyKey,
    Identifier,
    ListResponse,
    Memo,
    Page,
    ReadFrom,
    Recipient,
    ResponseBody,
    Text,
    Time,
    TransactionId,
    Usdc,
    WalletId,
)
from app.api.money_body import MoneyBody
from app.chain.escrow_instructions import PROOF_KINDS

#: Minimum and maximum of the time that the receiver has, in seconds, equal to the program's.
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
Sha256 = Annotated[str, AfterValidator(_sha256), WithJsonSchema({"type": "string", "pattern": SHA256})]
Url = Annotated[
    str,
    StringConstraints(max_length=_MAX_URL),
    AfterValidator(_url),
    WithJsonSchema({"type": "string", "maxLength": _MAX_URL, "pattern": _URL}),
]
#: A hash built from its hexadecimal digits. Like every conversion here, it does not change the values of a stored
#: response.
HexHash = Annotated[str, BeforeValidator(lambda digits: f"sha256:{digits.removeprefix('sha256:')}")]
#: Longer than any proof. A malformed proof below this length is an `invalid_proof`.
Proof = Annotated[str, StringConstraints(max_length=512)]


def _proof_type(kind: int | str | None) -> str | None:
    return PROOF_KINDS[kind] if isinstance(kind, int) else kind


def _proof_types(kinds: int | list[str]) -> list[str]:
    return kinds if isinstance(kinds, list) else [name for kind, name in enumerate(PROOF_KINDS) if kinds >> kind & 1]


class CreateEscrow(MoneyBody):
    """Body of an escrow. `toWallet` is a wallet of the organisation or a chain address, but not a domain."""

    from_wallet: Identifier
    to_wallet: Recipient
    amount: Amount
    currency: Literal["USDC"]
    task_description: Text
    timeout_seconds: Annotated[int, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT)] = DEFAULT_TIMEOUT
    expected_output_hash: Sha256 | None = None
    proof_types: Annotated[list[ProofType], Field(min_length=1, max_length=3)] = Field(
        default=["output_hash", "signed_attestation", "webhook_callback"]
    )
    memo: Memo | None = None
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None


class CompleteEscrow(Body):
    """Body of a completion.

    For `output_hash`, `proof` is `sha256:<hex>` of the output. For the other types it is base64 of the 64-byte
    signature followed by the 32-byte hash of the output.
    """

    proof_type: ProofType
    proof: Proof
    output_url: Url | None = None
    idempotency_key: IdempotencyKey | None = None


class DisputeEscrow(Body):
    """Body of a dispute. `walletId` names the side that an operator's key acts for.

    By default, this is the wallet of the session token or, without a token, the paying wallet. Without a token the
    operator signs, and the chain counts this as the one dispute of the paying side.
    """

    reason: Text
    evidence: Sha256 | None = None
    wallet_id: Identifier | None = None
    idempotency_key: IdempotencyKey | None = None


class WithdrawDispute(Body):
    """Body of a dispute's withdrawal.

    `walletId` names the side whose session token an operator's key uses. Without a token, the operator withdraws the
    dispute of either wallet.
    """

    wallet_id: Identifier | None = None
    idempotency_key: IdempotencyKey | None = None


class ResolveDispute(Body):
    """Body of the arbiter's decision. `releasedAmount` is the receiver's share of a split."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"decision": {"const": "split"}}},
            "then": {"required": ["releasedAmount"], "properties": {"releasedAmount": {"type": "string"}}},
            "else": {"properties": {"releasedAmount": {"type": "null"}}},
        }
    )

    decision: Literal["release", "refund", "split"]
    released_amount: Amount | None = None
    idempotency_key: IdempotencyKey | None = None

    @model_validator(mode="after")
    def _splits_with_an_amount(self) -> "ResolveDispute":
        if (self.decision == "split") != (self.released_amount is not None):
            raise PydanticCustomError(
                "released_amount", "releasedAmount is required for the decision split and not allowed for others"
            )
        return self


class ListEscrows(Page):
    """Query of the escrows. `walletId` is the paying or the receiving wallet."""

    wallet_id: Identifier | None = None
    status: EscrowStatus | None = None


class Dispute(ResponseBody):
    """A dispute. `raised_by` is a wallet, or an address if the dispute was raised without the service."""

    reason: Annotated[str | None, ReadFrom("dispute_reason")]
    evidence: Annotated[HexHash | None, ReadFrom("evidence_hash")]
    raised_by: str | None
    raised_at: Time
    tx_signature: Annotated[str, ReadFrom("dispute_signature")]


class Escrow(ResponseBody):
    """An escrow with its known details."""

    escrow_id: EscrowId
    id: Annotated[EscrowId, ReadFrom("escrow_id")]
    from_wallet: Annotated[WalletId, ReadFrom("wallet_id")]
    to_wallet: str
    amount: Usdc
    currency: str
    status: EscrowStatus
    chain_address: Annotated[str, ReadFrom("address")]
    expires_at: Annotated[ChainTime, ReadFrom("deadline")]
    created_at: Time
    tx_id: TransactionId | None
    tx_signature: Annotated[str | None, ReadFrom("signature")]
    task_hash: HexHash
    task_description: str | None
    expected_output_hash: Annotated[HexHash | None, ReadFrom("expected_output")]
    proof_types: Annotated[list[ProofType], BeforeValidator(_proof_types), ReadFrom("proof_kinds")]
    released_amount: Annotated[Usdc | None, ReadFrom("released")]
    refunded_amount: Annotated[Usdc | None, ReadFrom("refunded")]
    proof_type: Annotated[ProofType | None, BeforeValidator(_proof_type), ReadFrom("proof_kind")]
    output_hash: HexHash | None
    output_url: str | None
    dispute: Dispute | None
    settled_at: Time | None
    settlement_signature: str | None


class EscrowPage(ListResponse[Escrow]):
    """One page of escrows, newest first."""
