"""Simulated payments: the verdict of every rule on a payment that is not sent."""

from typing import Any

from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.api.fields import optional
from app.api.operation import Call
from app.approvals import service as approvals
from app.approvals.service import Expense
from app.chain.errors import ChainUnavailable
from app.chain.rules import RULES
from app.chain.transactions import unsigned
from app.core.errors import BusinessError
from app.core.money import format_usdc
from app.core.timestamps import iso
from app.payments.holding import allowances_behind
from app.payments.models import RuleVerdict, SimulatePayment, Simulation
from app.policies import service as policies
from app.recipients.service import resolve
from app.store.policies import PolicyRecord
from app.store.wallets import WalletRecord
from app.submission.chain_state import unverified_recipients
from app.submission.context import Service
from app.submission.plan import SimulationFailedError
from app.submission.program_errors import NO_LISTS, attempted_text, business_error, code_of, headroom_text, limit_text
from app.wallets import service as wallets
from idl.codec import CodecError

Verdict = dict[str, Any]
"""The program's `PaymentCheck`: the verdict of every rule."""


async def simulate(call: Call, body: SimulatePayment) -> Simulation:
    """Ask the program for the verdict of every rule on a payment. Nothing is recorded."""
    service, principal = call.service, call.principal
    payer = await wallets.find(service, principal.org, body.wallet_id)
    session = call.session(payer) if call.session_token is not None else None
    if payer.archived:
        raise BusinessError("wallet_archived")
    payee = await resolve(service, principal, body.to)
    # With an operator's key, the operator co-signs the session's payment. An agent needs an approval instead.
    co_signed = session is not None
    if principal.role == "agent" or await approvals.required_for(service, payer, body.amount):
        co_signed = await approvals.find_usable(service, Expense(payer, payee, body.amount)) is not None
    verdict = await verdict_on(service, Expense(payer, payee, body.amount), co_signed=co_signed)
    policy = await policies.find(service, payer.org, payer.policy.policy_id)
    return Simulation(
        wallet_id=payer.wallet_id,
        recipient=payee.name,
        amount=format_usdc(body.amount),
        currency="USDC",
        allowed=verdict["passed"],
        usdc_balance=format_usdc(verdict["balance"]),
        retry_at=optional(iso, verdict["retry_at"]),
        error=other_error(service, verdict),
        rules=[rule_verdict(rule, payer, policy, payee.owner) for rule in verdict["rules"]],
        open_allowances=await _allowances_behind(service, principal, payer, verdict),
        warnings=[*(await unverified_recipients(service, [payee.owner])).values()],
    )


async def _allowances_behind(
    service: Service, principal: Principal, payer: WalletRecord, verdict: Verdict
) -> list[str]:
    """Return the ids of outstanding allowances if only the money that they hold causes the refusal, else []."""
    broken = [one for one in verdict["rules"] if not one["passed"]]
    behind = [
        await allowances_behind(
            service,
            principal,
            payer,
            RULES[one["rule"]],
            budget_id=_budget_id(payer, one),
            limit=one["limit"],
            attempted=one["attempted"],
        )
        for one in broken
    ]
    if verdict["error"] is not None or not all(behind):
        return []
    return list(dict.fromkeys(one for ids in behind for one in ids))


async def verdict_on(
    service: Service, expense: Expense, *, co_signed: bool, outstanding: tuple[int, int] = (0, 0)
) -> Verdict:
    """Return the program's `PaymentCheck` of an expense, as if the outstanding payments had been made.

    ``outstanding`` is their total amount and their number.

    Raises the API's error if the program gives no verdict.
    """
    payer = expense.wallet
    org, vault = Pubkey.from_string(payer.org), Pubkey.from_string(payer.vault)
    check = service.instructions(payer.org).check_payment(
        policy=Pubkey.from_string(payer.policy.address),
        vault=vault,
        amount=expense.amount,
        recipient=expense.payee.owner,
        co_signed=co_signed,
        allowlist=optional(Pubkey.from_string, payer.policy.allowlist),
        recipient_account=service.addresses.recipient(org, expense.payee.owner),
        budget=optional(Pubkey.from_string, payer.budget),
        budget_parent=optional(Pubkey.from_string, payer.budget_parent),
        outstanding_amount=outstanding[0],
        outstanding_count=outstanding[1],
    )
    raw = unsigned([check], payer=service.signers.fee_payer_address)
    simulated = await service.chain.simulate(raw, replace_blockhash=True)
    if simulated.err is not None or simulated.return_data is None:
        raise business_error(service.codec, SimulationFailedError(simulated))
    try:
        verdict: Verdict = service.codec.decode_return("PaymentCheck", simulated.return_data)
    except CodecError as error:
        raise ChainUnavailable("the node's verdict cannot be decoded") from error
    if verdict["error"] is not None and service.codec.error_name(verdict["error"]) == NO_LISTS:
        # The service adds the lists of payees before it pays.
        verdict |= {"error": None, "passed": all(one["passed"] for one in verdict["rules"])}
    return verdict


def other_error(service: Service, verdict: Verdict) -> str | None:
    """Return the API's error code for an obstacle other than a policy rule, or None if there is no such obstacle."""
    return code_of(service.codec.error_name(verdict["error"]) or "") if verdict["error"] is not None else None


async def broken_rule(service: Service, expense: Expense, verdict: Verdict) -> dict[str, str] | None:
    """Return the violation of the first broken rule in a verdict, or None.

    Ignores the rules that an approval satisfies. Also ignores a freeze or pause, which has its own error instead of a
    violation.
    """
    policy = await policies.find(service, expense.wallet.org, expense.wallet.policy.policy_id)
    for rule in (rule_verdict(one, expense.wallet, policy, expense.payee.owner) for one in verdict["rules"]):
        # Only a simulation of the payment itself shows if the operator has approved it.
        if rule.passed or rule.rule in {"require_co_sign", "new_recipient", "frozen", "paused"}:
            continue
        if rule.limit is not None and rule.attempted is not None:
            level = {} if rule.budget_id is None else {"budget_id": rule.budget_id}
            return {"rule": rule.rule, "limit": rule.limit, "attempted": rule.attempted, **level}
    return None


def _budget_id(payer: WalletRecord, verdict: dict[str, Any]) -> str | None:
    """Return the id of the budget that has the rule, or None for a rule of the policy."""
    return (None, payer.budget_id, payer.parent_id)[verdict["level"]]


def rule_verdict(verdict: dict[str, Any], payer: WalletRecord, policy: PolicyRecord, recipient: Pubkey) -> RuleVerdict:
    """Return one rule's verdict in the API's form."""
    name, is_set = RULES[int(verdict["rule"] or 0)], bool(verdict["set"])
    limit, attempted, headroom = (int(verdict[key] or 0) for key in ("limit", "attempted", "headroom"))
    return RuleVerdict(
        rule=name,
        budget_id=_budget_id(payer, verdict),
        set=is_set,
        passed=bool(verdict["passed"]),
        limit=limit_text(name, limit, policy) if is_set else None,
        attempted=attempted_text(name, attempted, recipient) if is_set else None,
        headroom=headroom_text(name, headroom) if is_set else None,
        retry_at=optional(iso, verdict["retry_at"]),
    )
