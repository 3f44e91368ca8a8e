"""Refuses expenses: records the policy's refusals, and refuses payees without a known owner."""

from dataclasses import replace

from sqlalchemy import Connection

from app.approvals import service as approvals
from app.approvals.requesting import request
from app.chain.rules import RULES
from app.core.errors import ApiError, BusinessError, PolicyViolationError
from app.core.identifiers import derived_id, random_id
from app.core.timestamps import HOUR, iso
from app.core.transaction_types import A2A_SEND
from app.payments._events import append_blocked
from app.payments._simulation import broken_rule, verdict_on
from app.payments.expenses import ExpenseRequest
from app.payments.holding import HELD, allowances_behind_violation
from app.policies import service as policies
from app.policies.terms import with_recipients
from app.store.attempts import Attempt, add_refusal, insert_attempt, take_unreported
from app.store.daily_counts import count_record
from app.submission.chain_state import unverified_recipients
from app.submission.program_errors import invalid_recipient

CO_SIGN, NEW_RECIPIENT = "require_co_sign", "new_recipient"
"""Rules that an operator's signature or approval satisfies."""
#: Remedy for an operator's request without a session. With a session, the service adds the operator's signature itself.
_NO_SESSION = (
    "Above the policy's threshold the wallet's session must sign as well as the operator, but the request has no "
    "session token. Repeat it with the wallet's token in the header Session-Token: the operator then co-signs, "
    "or for a paid request an approval is requested. `POST /v1/wallets/{wallet_id}/rotate-token` issues a token."
)
_ASKED = "Above the policy's threshold an operator must approve. Send the same request again after the approval."
_PEOPLE = "Above this amount people must approve: {}, each by passkey. Send the same request again after the approval."
_NEW = (
    "The recipient is new to the wallet, and the policy caps the sum for new recipients. An approved payment makes it "
    "known. {}"
)
_WAIT = " Without an approval, the same payment passes from {} on."
_NO_SESSION_TO_APPROVE = (
    "Above the policy's threshold the wallet's session must sign as well, and an operator must approve the allowance. "
    "Repeat the request with the wallet's token in the header Session-Token: that requests the approval."
)

NO_ACCOUNT = "The recipient has no USDC account, and none can be opened together with this payment."
FACILITATOR_CANNOT_PAY = "The resource's facilitator cannot pay the transaction fee, for example because it lacks SOL."


async def unverified_refusal(expense: ExpenseRequest) -> BusinessError | None:
    """Return the refusal of a payee without a known owner, or None if the owner is known or the request may pay it.

    An agent's request may pay such a payee only if the wallet's policy also lists the address.
    """
    service, payer, owner = expense.service, expense.wallet, expense.payee.owner
    if (warning := (await unverified_recipients(service, [owner])).get(owner)) is None:
        return None
    allowed = expense.allows_unverified
    if allowed and expense.principal.role == "agent":
        policy = await policies.find(service, payer.org, payer.policy.policy_id)
        allowed = str(owner) in (await with_recipients(service, policy)).allowed_recipients
    return None if allowed else BusinessError("recipient_unverified", warning)


async def require_account(expense: ExpenseRequest, field: str, reason: str) -> None:
    """Require that the payee already has a token account, for an expense that cannot open one.

    If the account is missing, raises ``invalid_recipient`` with the ``reason``. For a payee without a known owner that
    the request may not pay, raises ``recipient_unverified``, or ``policy_violation`` if the policy refuses the expense
    too. The policy is checked here, because without the account the program fails before it reaches the policy's rules.
    """
    service, owner = expense.service, expense.payee.owner
    if await service.chain.token_balance(service.addresses.token_account(owner)) is not None:
        return
    if (refusal := await unverified_refusal(expense)) is None:
        raise invalid_recipient(field, reason)
    broken = await broken_rule(service, expense, await verdict_on(service, expense, co_signed=True))
    raise refusal if broken is None else await record_refusal(expense, broken)


async def record_refusal(expense: ExpenseRequest, found: dict[str, str]) -> ApiError:
    """Record a violation of the policy as a `blocked` row with its event, and return the error.

    Beyond the wallet's daily number of such rows, the refusals of an hour with the same type and rule share one row.
    ``report_refusals`` adds the event of a shared row. Raises ``idempotency_in_progress`` if another node has claimed
    the same request. In that case, the policy may have refused because it already counts the other node's expense.
    """
    await expense.call.claim.require_free()
    service, wallet = expense.service, expense.wallet
    approval_id = remedy = None
    consents = found["rule"] in {CO_SIGN, NEW_RECIPIENT}
    if consents and expense.session is not None:
        approval_id = await request(service, expense.principal.actor, expense, unusable=expense.unusable)
        people = await approvals.required_for(service, wallet, expense.amount)
        remedy = _ASKED if not people else _PEOPLE.format(people)
    elif consents:
        remedy = _NO_SESSION if expense.purpose != "allowance" else _NO_SESSION_TO_APPROVE
    if remedy is not None and found["rule"] == NEW_RECIPIENT:
        judged = await verdict_on(service, expense, co_signed=False)
        retry_at = next(one["retry_at"] for one in judged["rules"] if RULES[one["rule"]] == NEW_RECIPIENT)
        remedy = _NEW.format(remedy) + ("" if retry_at is None else _WAIT.format(iso(retry_at)))
    holding = await allowances_behind_violation(service, expense.principal, wallet, found)
    if holding:
        remedy = HELD
    blocked = Attempt(
        tx_id=random_id("tx_"),
        org=wallet.org,
        wallet_id=wallet.wallet_id,
        type=A2A_SEND if expense.purpose == "escrow" else expense.kind.name,
        status="blocked",
        recipient=expense.payee.name,
        recipient_address=str(expense.payee.owner),
        amount=expense.amount,
        policy_id=wallet.policy.policy_id,
        policy_triggered=True,
        memo=expense.memo,
        violation=found,
        refusals=1,
        created_at=(now := await service.clock.moment_ms()),
        ended_at=now,
    )
    hour = ("refusals", wallet.wallet_id, str(now // HOUR), blocked.type, found["rule"])

    def record(conn: Connection) -> str:
        if not count_record(conn, wallet.wallet_id, "refusal", now):
            shared = replace(blocked, tx_id=derived_id("tx_", *hour), ended_at=None)
            add_refusal(conn, shared)
            return shared.tx_id
        insert_attempt(conn, blocked)
        append_blocked(conn, blocked, approval_id)
        return blocked.tx_id

    tx_id = await service.db.write(record)
    return PolicyViolationError(
        violation=found,
        wallet_id=wallet.wallet_id,
        policy_id=wallet.policy.policy_id,
        tx_id=tx_id,
        approval_id=approval_id,
        remedy=remedy,
        open_allowances=holding,
    )


def report_refusals(conn: Connection, before: int, *, most: int) -> int:
    """Add the events of up to ``most`` rows. Each row stands for several refusals of one hour.

    Returns the number of events.

    ``before`` is the Unix millisecond at which the last of these hours ended.
    """
    found = take_unreported(conn, before, most=most)
    for blocked in found:
        append_blocked(conn, blocked, None)
    return len(found)
