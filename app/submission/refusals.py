"""From the program's refusals to errors of the interface."""

from collections.abc import Mapping

import structlog
from solders.pubkey import Pubkey

from app.chain.logs import policy_violation
from app.chain.rules import CATEGORIES, RULES, category_names
from app.core.errors import (
    CATALOGUE,
    ApiError,
    AuthenticationError,
    BusinessError,
    ConflictError,
    RequestError,
    UnavailableError,
)
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.store.policies import PolicyRecord
from app.submission.plan import Failure, Outcome, RefusedError
from idl.codec import Codec

_log = structlog.get_logger(__name__)

_MONEY_RULES = frozenset({"max_per_tx", "max_per_day", "max_per_month", "require_co_sign"})

#: The program's errors by name, and what they mean to a client. The rules' own errors are violations instead.
_ERRORS: Mapping[str, tuple[type[ApiError], str]] = {
    "OrgPaused": (BusinessError, "org_paused"),
    "WalletFrozen": (BusinessError, "wallet_frozen"),
    "InsufficientBalance": (BusinessError, "wallet_insufficient_balance"),
    "ReserveInsufficient": (BusinessError, "org_insufficient_balance"),
    "ZeroAmount": (RequestError, "invalid_amount"),
    "PaymentToSelf": (RequestError, "invalid_recipient"),
    "SessionExpired": (AuthenticationError, "session_token_expired"),
    "WalletArchived": (BusinessError, "wallet_archived"),
    "WalletNotEmpty": (BusinessError, "wallet_not_empty"),
    "OpenEscrows": (BusinessError, "wallet_not_empty"),
    "PolicyImmutable": (BusinessError, "policy_immutable"),
    "PolicyInUse": (BusinessError, "policy_in_use"),
    "OperatorLimitExceeded": (BusinessError, "operator_limit_exceeded"),
    "ReceiverFrozen": (BusinessError, "wallet_frozen"),
    "ReceiverArchived": (BusinessError, "wallet_archived"),
    "WrongOrg": (RequestError, "invalid_recipient"),
    "WrongVault": (RequestError, "invalid_recipient"),
    "TooManyEscrows": (BusinessError, "too_many_escrows"),
    "EscrowExpired": (BusinessError, "escrow_expired"),
    "EscrowDisputed": (BusinessError, "escrow_already_settled"),
    "EscrowNotDisputed": (BusinessError, "escrow_not_disputed"),
    "EscrowAmountExceeded": (RequestError, "invalid_amount"),
    "InvalidProof": (BusinessError, "invalid_proof"),
}

RECEIVER_ARCHIVED = "The receiving wallet was archived."
EXPIRED = (
    "The wallet stays frozen after the expiry of its policy. Attach another policy or extend the `expiry`, "
    "then set the wallet's `status` to `active`."
)

#: What is said of an error where the meaning of its code would mislead.
_MESSAGES: Mapping[str, str] = {
    # Amounts of zero are refused before: this is `all` of a wallet that holds nothing.
    "ZeroAmount": "There is nothing to withdraw: the balance is zero.",
    "ReceiverFrozen": "The receiving wallet is frozen.",
    "ReceiverArchived": RECEIVER_ARCHIVED,
    "WrongOrg": "The address is a vault of another organisation.",
    "WrongVault": "The address is an account of the program, but no vault.",
    "EscrowDisputed": "The escrow is disputed: its arbiter decides.",
    "EscrowAmountExceeded": "The escrow holds less than is to be released.",
}

#: The program's errors that say that what was read before has changed meanwhile.
_MEANWHILE = frozenset({"VersionMismatch", "AlreadyFrozen", "NotFrozen", "WrongPolicy"})
#: The chain's errors for a fee payer that has too little.
_UNPAID = ("InsufficientFundsForFee", "AccountNotFound")


def error_name(codec: Codec, failure: Failure) -> str | None:
    """Return the program's name of the error; None when something else failed."""
    custom = failure.simulation.custom_error if isinstance(failure, RefusedError) else failure.custom_error
    return codec.error_name(custom) if custom is not None else None


def is_known(name: str | None) -> bool:
    """Whether a program's error, by its name, already says why the transaction is refused."""
    return name in _ERRORS


def invalid_recipient(field: str, reason: str | None = None) -> RequestError:
    """Return the error for a field of the request that names no recipient."""
    return RequestError("invalid_recipient", f"{field}: {reason or CATALOGUE['invalid_recipient'].meaning}")


def business_error(
    codec: Codec,
    failure: Failure,
    *,
    instead: Mapping[str, str] | None = None,
    recipient: str | None = None,
) -> ApiError:
    """Return the error for a transaction that the program refused.

    ``instead`` replaces codes where the operation has a better one; ``recipient`` is the request's field that names
    the recipient. What is no refusal of the program's is an internal error, or, when it landed and failed,
    `transaction_failed`.
    """
    simulation = failure.simulation if isinstance(failure, RefusedError) else None
    name = error_name(codec, failure)
    if name is not None and name in _ERRORS:
        kind, code = _ERRORS[name]
        if code == "invalid_recipient" and recipient is not None:
            return invalid_recipient(recipient, _MESSAGES.get(name))
        return kind((instead or {}).get(code, code), _MESSAGES.get(name))
    if name == "PolicyExpired":
        return BusinessError("wallet_frozen", EXPIRED)
    if name in _MEANWHILE:
        return ConflictError("idempotency_in_progress", "It was changed at the same time. Repeat the request.")
    if simulation is not None and name is None and simulation.custom_error is not None:
        _log.warning("rehearsal_failed", err=str(simulation.err), logs=simulation.logs[-20:])
        return BusinessError("transaction_failed", "Another program refuses the transaction. Nothing was moved.")
    if simulation is not None and simulation.err in _UNPAID:
        _log.error("fee_payer_is_empty", err=str(simulation.err))
        return UnavailableError("chain_unavailable", "The service cannot pay for transactions at the moment.")
    if simulation is not None:
        _log.error("rehearsal_failed", err=str(simulation.err), program_error=name, logs=simulation.logs[-20:])
        return ApiError("internal_error")
    return BusinessError("transaction_failed")


def require_confirmed(codec: Codec, outcome: Outcome) -> None:
    """Raise for a change that failed on the chain, or is not confirmed yet: its idempotency key leads back to it."""
    if outcome.status == "failed":
        raise business_error(codec, outcome)
    if outcome.status == "pending":
        raise UnavailableError(
            "chain_unavailable",
            "The change was sent to the chain and is not confirmed yet. Look again a little later.",
            fields={"tx_id": outcome.attempt.tx_id},
            headers={"Retry-After": "1"},
        )


def rule_of(codec: Codec, failure: Failure) -> str | None:
    """Return the rule that refused, from the error code; None when it was no rule of the policy's."""
    custom = failure.simulation.custom_error if isinstance(failure, RefusedError) else failure.custom_error
    if custom is None or codec.error_name(custom) is None:
        return None
    rule = custom - 6000
    return RULES[rule] if 2 <= rule < len(RULES) else None


def violation(codec: Codec, logs: list[str], policy: PolicyRecord) -> dict[str, str] | None:
    """Return the violation object from the log of a refused payment; None when the log does not prove one."""
    found = policy_violation(logs, codec)
    if found is None:
        return None
    return {
        "rule": found.rule_name,
        "limit": limit_text(found.rule_name, found.limit, policy),
        "attempted": attempted_text(found.rule_name, found.attempted, found.recipient),
    }


def limit_text(rule: str, limit: int, policy: PolicyRecord) -> str:
    """Return a rule's limit as the interface shows it: money, a count, a time, or the list's length or members."""
    if rule in _MONEY_RULES:
        return format_usdc(limit)
    if rule == "expiry":
        return iso(limit)
    if rule == "blocked_categories":
        return ",".join(category_names(policy.rules.blocked_categories))
    if rule == "allowed_recipients":
        return str(len(policy.allowed_recipients))
    return str(limit)


def attempted_text(rule: str, attempted: int, recipient: Pubkey) -> str:
    """Return what was attempted: money, a count, a time, a category's name or the recipient's address."""
    if rule in _MONEY_RULES:
        return format_usdc(attempted)
    if rule == "expiry":
        return iso(attempted)
    if rule == "blocked_categories":
        return CATEGORIES[attempted] if attempted < len(CATEGORIES) else str(attempted)
    if rule == "allowed_recipients":
        return str(recipient)
    return str(attempted)


def headroom_text(rule: str, headroom: int) -> str | None:
    """Return what a rule leaves: money or a count; None for rules that only say yes or no."""
    if rule in _MONEY_RULES:
        return format_usdc(headroom)
    return str(headroom) if rule == "velocity_cap" else None
