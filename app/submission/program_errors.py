"""Translates the program's refusals into the API's errors."""

from collections.abc import Mapping

import structlog
from solders.pubkey import Pubkey

from app.chain.logs import policy_violation, shows_refusal
from app.chain.records import SimulationResult
from app.chain.rules import CATEGORIES, HOLDING_RULES, RULE_ERRORS, RULES, category_names
from app.core.errors import (
    CATALOGUE,
    ApiError,
    AuthenticationError,
    BusinessError,
    ConflictError,
    NotFoundError,
    OutdatedError,
    RequestError,
    UnavailableError,
)
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.store.policies import PolicyRecord
from app.submission.fee_payer import insufficient
from app.submission.plan import Failure, Outcome, SimulationFailedError
from idl.codec import Codec

_log = structlog.get_logger(__name__)

_MONEY_RULES = HOLDING_RULES | {"max_per_tx", "require_co_sign", "new_recipient"}
_COUNT_RULES = frozenset({"velocity_cap", "budget_velocity_cap"})

NO_LISTS = "PayeeListsRequired"
"""Error of a vault without the lists of payees that its policy's `newRecipientCap` needs. `migrate` adds them."""

#: The API's errors by the name of the program's error. Errors of policy rules become violations instead.
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
    "BudgetFrozen": (BusinessError, "budget_frozen"),
    # The wallet's budget was changed after it was read. The new budget may allow the payment.
    "BudgetRequired": (UnavailableError, "chain_unavailable"),
    "BudgetParentRequired": (UnavailableError, "chain_unavailable"),
    "WrongBudget": (UnavailableError, "chain_unavailable"),
    "PayeeUnknown": (NotFoundError, "recipient_not_found"),
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

RECEIVER_ARCHIVED = "The receiving wallet is archived. Pay another wallet."
EXPIRED = (
    "The wallet is frozen because its policy expired. If it has not been replaced or extended since, attach "
    "another policy or extend the `expiry`. Then set the wallet's `status` to `active`."
)

_BUDGET_CHANGED = "The wallet's budget was changed concurrently. Nothing was moved. Retry."
_NO_REASON = "The Solana node refused the transaction for a reason other than the program's rules. Nothing was sent."
UNPROVEN = "The Solana node refused the transaction without showing that the program refused it."
_NOT_DEPLOYED = "The service's program is not deployed on the chain, or was built for another address."
_NO_ROLE = (
    "The service's signing key lacks the role that the transaction needs. If another key has the role now, start the "
    "service again with that key."
)

#: Messages for program errors that the general message of the API's code would describe misleadingly.
_MESSAGES: Mapping[str, str] = {
    # Zero amounts are refused earlier, so this is a withdrawal of `all` from an empty wallet or reserve.
    "ZeroAmount": "There is nothing to withdraw: the balance is zero.",
    "ReceiverFrozen": "The receiving wallet is frozen, so no escrow can be created to it.",
    "ReceiverArchived": RECEIVER_ARCHIVED,
    "WrongOrg": "The address is a vault of another organisation.",
    "WrongVault": "The address is an account of the program, but not a vault.",
    "BudgetRequired": _BUDGET_CHANGED,
    "BudgetParentRequired": _BUDGET_CHANGED,
    "WrongBudget": _BUDGET_CHANGED,
    "OpenAllowances": "The wallet has outstanding allowances. Settle them first.",
    "UnusableDelegate": "delegate: must not be address zero, an account of the program, the operator, the authority or "
    "the wallet's session key.",
    "InvalidAllowanceTime": "expiresIn: the allowance must end in the future, and not after its session, policy or "
    "budget.",
    "TooManyAllowances": "The wallet already has four outstanding allowances, the maximum. Settle one first.",
    "EscrowDisputed": "The escrow is disputed and awaits the arbiter's decision.",
    "EscrowAmountExceeded": "The amount to release exceeds the amount in the escrow.",
}

#: The program's errors for state that changed after the service read it.
_MEANWHILE = frozenset(
    {
        *("VersionMismatch", "SequenceMismatch", "AlreadyFrozen", "NotFrozen", "AlreadyPaused"),
        *("WrongPolicy", "AuthorityRequired"),
    }
)
OUTDATED = _MEANWHILE | {"WrongBudget", "BudgetRequired", "BudgetParentRequired"}
"""Program errors of a change that was made from an outdated state."""
#: The chain's errors for a fee payer without enough lamports for the fee, or to stay rent-exempt after paying it.
_UNPAID = ("InsufficientFundsForFee", "AccountNotFound", "InsufficientFundsForRent")
#: Prefix of the system program's log line if the fee payer cannot pay an account's rent.
_UNPAID_RENT = "Transfer: insufficient lamports"
#: The chain's errors for a program that does not exist, was closed, or was built for another address.
_NO_PROGRAM = ("ProgramAccountNotFound", "InvalidProgramForExecution", "UnsupportedProgramId", "IncorrectProgramId")


def error_name(codec: Codec, failure: Failure) -> str | None:
    """Return the program's name for the error, or None if something else failed or the logs show no failed program."""
    if isinstance(failure, SimulationFailedError) and not shows_refusal(failure.simulation.logs):
        return None
    return None if failure.custom_error is None else codec.error_name(failure.custom_error)


def is_known(name: str | None) -> bool:
    """Return True if the program's error alone explains the refusal, because the API has an error for it."""
    return name in _ERRORS


def code_of(name: str) -> str:
    """Return the API's error code for a program error, or `transaction_failed` if the API has no code for it."""
    return _ERRORS[name][1] if name in _ERRORS else "transaction_failed"


def invalid_recipient(field: str, reason: str | None = None) -> RequestError:
    """Return the error for a request field that does not name a valid recipient."""
    return RequestError("invalid_recipient", f"{field}: {reason or CATALOGUE['invalid_recipient'].meaning}")


def business_error(
    codec: Codec,
    failure: Failure,
    *,
    instead: Mapping[str, str] | None = None,
    recipient: str | None = None,
) -> ApiError:
    """Return the API's error for a transaction that the program refused.

    ``instead`` maps codes to the operation's more precise codes. ``recipient`` is the request field that names the
    recipient. If the program did not refuse the transaction, the error is `chain_unavailable`, or `transaction_failed`
    if the transaction landed or another program refused it. For a missing account, it is an OutdatedError.
    """
    refused = failure if isinstance(failure, SimulationFailedError) else None
    simulation = None if refused is None else refused.simulation
    name = error_name(codec, failure)
    if name is not None and name in _ERRORS:
        kind, code = _ERRORS[name]
        if code == "invalid_recipient" and recipient is not None:
            return invalid_recipient(recipient, _MESSAGES.get(name))
        return kind((instead or {}).get(code, code), _MESSAGES.get(name))
    if name == "PolicyExpired":
        return BusinessError("wallet_frozen", EXPIRED)
    if name in _MEANWHILE:
        return ConflictError("idempotency_in_progress", "The state on the chain was changed concurrently. Retry.")
    if simulation is not None and (unusable := _unusable(simulation)) is not None:
        _log.error("chain_unusable", reason=unusable.message, err=str(simulation.err))
        return unusable
    if refused is not None and refused.lacks_account:
        _log.warning("simulation_failed", err=str(refused.simulation.err), logs=refused.simulation.logs[-20:])
        return OutdatedError("chain_unavailable", _NO_REASON)
    if simulation is not None and name == "Unauthorized":
        _log.error("role_lost", err=str(simulation.err))
        return UnavailableError("chain_unavailable", _NO_ROLE)
    if simulation is not None and simulation.custom_error is not None and not shows_refusal(simulation.logs):
        _log.error("simulation_failed", err=str(simulation.err), logs=simulation.logs[-20:])
        return UnavailableError("chain_unavailable", UNPROVEN)
    if simulation is not None and name is None and simulation.custom_error is not None:
        _log.warning("simulation_failed", err=str(simulation.err), logs=simulation.logs[-20:])
        return BusinessError("transaction_failed", "A program failed with an unknown error. Nothing was moved.")
    if simulation is not None:
        _log.error("simulation_failed", err=str(simulation.err), program_error=name, logs=simulation.logs[-20:])
        # An unexplained error of the program is a bug of the service. Any other error may be the node's.
        return UnavailableError("chain_unavailable", _NO_REASON) if name is None else ApiError("internal_error")
    return BusinessError("transaction_failed")


def _unusable(simulation: SimulationResult) -> UnavailableError | None:
    """Return the error if the program is missing or the fee payer has too little SOL, or None for any other cause."""
    err = simulation.err
    detail = err["InstructionError"][1] if isinstance(err, dict) and "InstructionError" in err else None
    cause = detail or (next(iter(err)) if isinstance(err, dict) else err)
    if cause in _NO_PROGRAM:
        return UnavailableError("chain_unavailable", _NOT_DEPLOYED)
    # The fee payer pays the rent of every account that the service's transactions create.
    if cause in _UNPAID or any(line.startswith(_UNPAID_RENT) for line in simulation.logs):
        return insufficient()
    return None


def fee_payer_cannot_pay(refused: SimulationFailedError) -> bool:
    """Return True if the fee payer lacks lamports for the fee, would lose its rent exemption, or cannot pay fees."""
    err = refused.simulation.err
    return any(cause in {*_UNPAID, "InvalidAccountForFee"} for cause in (err if isinstance(err, dict) else [err]))


def require_confirmed(codec: Codec, outcome: Outcome) -> None:
    """Raise the error of a failed or unconfirmed change.

    If the change is unconfirmed, a request repeated under the same idempotency key continues it.
    """
    if outcome.status == "failed":
        raise business_error(codec, outcome)
    if outcome.status == "pending":
        raise UnavailableError(
            "chain_unavailable",
            "The change was sent to the chain but is not confirmed yet. Check again shortly.",
            fields={"tx_id": outcome.attempt.tx_id},
            headers={"Retry-After": "1"},
        )


def rule_of(codec: Codec, failure: Failure) -> str | None:
    """Return the policy or budget rule that the error code names, or None if something else refused."""
    name = error_name(codec, failure)
    rule = RULE_ERRORS.index(name) if name in RULE_ERRORS else 0
    return RULES[rule] if rule >= 2 else None


def violation(
    codec: Codec, logs: list[str], policy: PolicyRecord, levels: Mapping[str | None, str | None] | None = None
) -> dict[str, str] | None:
    """Return the violation object from the logs of a refused payment, or None if they do not prove a violation.

    ``levels`` has the ids of the wallet's budgets by address, so that the object can name the one that refused.
    """
    found = policy_violation(logs, codec)
    if found is None:
        return None
    level = (levels or {}).get(str(found.budget))
    return {
        "rule": found.rule_name,
        "limit": limit_text(found.rule_name, found.limit, policy),
        "attempted": attempted_text(found.rule_name, found.attempted, found.recipient),
        **({} if level is None else {"budget_id": level}),
    }


def limit_text(rule: str, limit: int, policy: PolicyRecord) -> str:
    """Return a rule's limit as responses show it: money, a count, a time, categories, or the allowlist's length."""
    if rule == "blocked_categories":
        return ",".join(category_names(policy.rules.blocked_categories))
    if rule == "allowed_recipients":
        return str(len(policy.allowed_recipients))
    return _value_text(rule, limit)


def attempted_text(rule: str, attempted: int, recipient: Pubkey) -> str:
    """Return the attempted value: money, a count, a time, a category's name or the recipient's address."""
    if rule == "blocked_categories" and attempted < len(CATEGORIES):
        return CATEGORIES[attempted]
    if rule == "allowed_recipients":
        return str(recipient)
    return _value_text(rule, attempted)


def _value_text(rule: str, value: int) -> str:
    if rule in _MONEY_RULES:
        return format_usdc(value)
    return iso(value) if rule in {"expiry", "budget_expired"} else str(value)


def headroom_text(rule: str, headroom: int) -> str | None:
    """Return a rule's headroom as money or as a count, or None for a rule that only allows or refuses."""
    return _value_text(rule, headroom) if rule in _MONEY_RULES | _COUNT_RULES else None
