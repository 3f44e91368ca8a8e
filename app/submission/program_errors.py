"""Translates the program's refusals into errors of the API."""

from collections.abc import Mapping

import structlog
from solders.pubkey import Pubkey

from app.chain.logs import policy_violation, shows_refusal
from app.chain.records import SimulationResult
from app.chain.rules import CATEGORIES, RULE_ERRORS, RULES, category_names
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
from app.submission.plan import Failure, Outcome, SimulationFailedError
from idl.codec import Codec

_log = structlog.get_logger(__name__)

_MONEY_RULES = frozenset(
    {"max_per_tx", "max_per_day", "max_per_month", "require_co_sign", "budget_max_per_day", "budget_max_per_month"}
)
_COUNT_RULES = frozenset({"velocity_cap", "budget_velocity_cap"})

#: The API's errors for the program's, by name. The errors of the rules are violations instead.
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
    "BudgetInUse": (BusinessError, "budget_in_use"),
    # The wallet's budget was changed after it was read: its new one may let the payment pass.
    "BudgetRequired": (UnavailableError, "chain_unavailable"),
    "WrongBudget": (UnavailableError, "chain_unavailable"),
    "OperatorLimitExceeded": (BusinessError, "operator_limit_exceeded"),
    "ReceiverFrozen": (BusinessError, "wallet_frozen"),
    "ReceiverArchived": (BusinessError, "wallet_archived"),
    "WrongOrg": (RequestError, "invalid_recipient"),
    "WrongVault": (RequestError, "invalid_recipient"),
    "TooManyEscrows": (BusinessError, "too_many_escrows"),
    "EscrowExpired": (BusinessError, "escrow_expired"),
    "EscrowDisputed": (BusinessError, "escrow_already_settled"),
    "DisputeRaisedBefore": (BusinessError, "dispute_raised_before"),
    "EscrowNotDisputed": (BusinessError, "escrow_not_disputed"),
    "EscrowAmountExceeded": (RequestError, "invalid_amount"),
    "InvalidProof": (BusinessError, "invalid_proof"),
    "ProofKindNotAccepted": (BusinessError, "invalid_proof"),
    "UnexpectedOutput": (BusinessError, "invalid_proof"),
    "AllowancesNotAllowed": (BusinessError, "allowances_not_allowed"),
    "TooManyAllowances": (BusinessError, "too_many_allowances"),
    "OpenAllowances": (BusinessError, "wallet_not_empty"),
    "UnusableDelegate": (RequestError, "invalid_request"),
    "InvalidAllowanceTime": (RequestError, "invalid_request"),
    "EscrowDecided": (BusinessError, "escrow_already_settled"),
}

RECEIVER_ARCHIVED = "The receiving wallet was archived."
EXPIRED = (
    "The wallet is frozen because its policy expired. Attach another policy or extend the `expiry`, "
    "then set the wallet's `status` to `active`."
)

_BUDGET_CHANGED = "The wallet's budget was changed at the same time. Repeat the request; nothing was moved."
_NO_REASON = "The chain's node refuses the transaction for a reason that is not the program's. Nothing was sent."
UNPROVEN = "The chain's node refuses the transaction and does not show that the program does."
_NO_ROLE = (
    "The key that the service signs with no longer has its role in the organisation. Start the service again with the "
    "new key."
)

#: Messages for errors whose code's meaning would mislead.
_MESSAGES: Mapping[str, str] = {
    # Amounts of zero are refused earlier: this is `all` of a wallet that holds nothing.
    "ZeroAmount": "There is nothing to withdraw: the balance is zero.",
    "ReceiverFrozen": "The receiving wallet is frozen.",
    "ReceiverArchived": RECEIVER_ARCHIVED,
    "WrongOrg": "The address is a vault of another organisation.",
    "WrongVault": "The address is an account of the program, but not a vault.",
    "BudgetRequired": _BUDGET_CHANGED,
    "WrongBudget": _BUDGET_CHANGED,
    "OpenAllowances": "The wallet has outstanding allowances. Settle them first.",
    "UnusableDelegate": "delegate: must be the address of a key that has no role in the organisation or the wallet.",
    "InvalidAllowanceTime": "expiresIn: the session or the policy ends too soon, or the grant took too long.",
    "TooManyAllowances": "The wallet has four outstanding allowances, which is the most.",
    "EscrowDisputed": "The escrow is disputed and waits for the arbiter's decision.",
    "EscrowAmountExceeded": "The escrow holds less than the amount to release.",
}

#: The program's errors for state that changed after it was read.
_MEANWHILE = frozenset(
    {
        *("VersionMismatch", "SequenceMismatch", "AlreadyFrozen", "NotFrozen", "AlreadyPaused"),
        *("WrongPolicy", "AuthorityRequired"),
    }
)
#: The chain's errors for a fee payer without enough lamports: for the fee, or for what rent it would be left with.
_UNPAID = ("InsufficientFundsForFee", "AccountNotFound", "InsufficientFundsForRent")
#: How the system program's log begins if the fee payer cannot pay an account's rent.
_UNPAID_RENT = "Transfer: insufficient lamports"
#: The chain's errors for a program that is not there, was closed, or was built for another address.
_NO_PROGRAM = ("ProgramAccountNotFound", "InvalidProgramForExecution", "UnsupportedProgramId", "IncorrectProgramId")


def error_name(codec: Codec, failure: Failure) -> str | None:
    """Return the program's name for the error; None if something else failed, or no program is shown that did."""
    if isinstance(failure, SimulationFailedError) and not shows_refusal(failure.simulation.logs):
        return None
    return None if failure.custom_error is None else codec.error_name(failure.custom_error)


def is_known(name: str | None) -> bool:
    """Return whether the program's error explains the refusal by itself."""
    return name in _ERRORS


def invalid_recipient(field: str, reason: str | None = None) -> RequestError:
    """Return the error for a field of the request that does not name a valid recipient."""
    return RequestError("invalid_recipient", f"{field}: {reason or CATALOGUE['invalid_recipient'].meaning}")


def business_error(
    codec: Codec,
    failure: Failure,
    *,
    instead: Mapping[str, str] | None = None,
    recipient: str | None = None,
) -> ApiError:
    """Return the API's error for a transaction that the program refused.

    ``instead`` maps codes to better ones of the operation; ``recipient`` is the request's field that names the
    recipient. Without a refusal by the program, the error is `chain_unavailable`, or `transaction_failed` if the
    transaction landed.
    """
    simulation = failure.simulation if isinstance(failure, SimulationFailedError) else None
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
    if simulation is not None and (reason := _unusable(simulation)) is not None:
        _log.error("chain_unusable", reason=reason, err=str(simulation.err))
        return UnavailableError("chain_unavailable", reason)
    if simulation is not None and name == "Unauthorized":
        _log.error("role_lost", err=str(simulation.err))
        return UnavailableError("chain_unavailable", _NO_ROLE)
    if simulation is not None and simulation.custom_error is not None and not shows_refusal(simulation.logs):
        _log.error("simulation_failed", err=str(simulation.err), logs=simulation.logs[-20:])
        return UnavailableError("chain_unavailable", UNPROVEN)
    if simulation is not None and name is None and simulation.custom_error is not None:
        _log.warning("simulation_failed", err=str(simulation.err), logs=simulation.logs[-20:])
        return BusinessError("transaction_failed", "Another program refused the transaction. Nothing was moved.")
    if simulation is not None:
        _log.error("simulation_failed", err=str(simulation.err), program_error=name, logs=simulation.logs[-20:])
        # An error of the program that nothing explains is a fault of ours. Any other may be the node's.
        return UnavailableError("chain_unavailable", _NO_REASON) if name is None else ApiError("internal_error")
    return BusinessError("transaction_failed")


def _unusable(simulation: SimulationResult) -> str | None:
    """Return why the service can send no transactions at all; None if the refusal is of this one."""
    err = simulation.err
    detail = err["InstructionError"][1] if isinstance(err, dict) and "InstructionError" in err else None
    cause = detail or (next(iter(err)) if isinstance(err, dict) else err)
    if cause in _NO_PROGRAM:
        return "The service's program is not on the chain, or was built for another address."
    # The fee payer pays the rent of every account that the service's transactions create.
    if cause in _UNPAID or any(line.startswith(_UNPAID_RENT) for line in simulation.logs):
        return "The service's fee payer has too little SOL for the fees and the rent of transactions."
    return None


def fee_payer_lacks_funds(refused: SimulationFailedError) -> bool:
    """Return whether the fee payer cannot pay."""
    return refused.simulation.err in _UNPAID or (
        isinstance(refused.simulation.err, dict) and any(cause in _UNPAID for cause in refused.simulation.err)
    )


def require_confirmed(codec: Codec, outcome: Outcome) -> None:
    """Raise the error of a change that failed or is not confirmed yet; its idempotency key leads back to it."""
    if outcome.status == "failed":
        raise business_error(codec, outcome)
    if outcome.status == "pending":
        raise UnavailableError(
            "chain_unavailable",
            "The change was sent to the chain but is not confirmed yet. Check again a little later.",
            fields={"tx_id": outcome.attempt.tx_id},
            headers={"Retry-After": "1"},
        )


def rule_of(codec: Codec, failure: Failure) -> str | None:
    """Return the rule of the policy or budget that refused, from the error code; None if it was something else."""
    name = error_name(codec, failure)
    rule = RULE_ERRORS.index(name) if name in RULE_ERRORS else 0
    return RULES[rule] if rule >= 2 else None


def violation(codec: Codec, logs: list[str], policy: PolicyRecord) -> dict[str, str] | None:
    """Return the violation object from the log of a refused payment; None if the log does not prove one."""
    found = policy_violation(logs, codec)
    if found is None:
        return None
    return {
        "rule": found.rule_name,
        "limit": limit_text(found.rule_name, found.limit, policy),
        "attempted": attempted_text(found.rule_name, found.attempted, found.recipient),
    }


def limit_text(rule: str, limit: int, policy: PolicyRecord) -> str:
    """Return a rule's limit as answers show it: money, a count, a time, blocked categories, or the list's length."""
    if rule == "blocked_categories":
        return ",".join(category_names(policy.rules.blocked_categories))
    if rule == "allowed_recipients":
        return str(len(policy.allowed_recipients))
    return _value_text(rule, limit)


def attempted_text(rule: str, attempted: int, recipient: Pubkey) -> str:
    """Return what was attempted: money, a count, a time, a category's name or the recipient's address."""
    if rule == "blocked_categories" and attempted < len(CATEGORIES):
        return CATEGORIES[attempted]
    if rule == "allowed_recipients":
        return str(recipient)
    return _value_text(rule, attempted)


def _value_text(rule: str, value: int) -> str:
    if rule in _MONEY_RULES:
        return format_usdc(value)
    return iso(value) if rule == "expiry" else str(value)


def headroom_text(rule: str, headroom: int) -> str | None:
    """Return what a rule leaves: money or a count; None for rules that only allow or refuse."""
    return _value_text(rule, headroom) if rule in _MONEY_RULES | _COUNT_RULES else None
