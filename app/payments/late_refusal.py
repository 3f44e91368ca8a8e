"""The error of a late refusal: the simulation allowed the transaction, but it failed when it landed."""

from app.access.keyring import Principal
from app.chain.rules import HOLDING_RULES
from app.core.errors import ApiError, PolicyViolationError
from app.payments.holding import HELD, allowances_behind_violation
from app.policies import service as policies
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.submission.plan import Outcome
from app.submission.program_errors import business_error, rule_of, violation


async def late_refusal(service: Service, principal: Principal, payer: WalletRecord, outcome: Outcome) -> ApiError:
    """Return the error for a transaction that passed the simulation and was refused when it landed."""
    if (rule := rule_of(service.codec, outcome)) is not None:
        logs = await service.chain.logs(outcome.attempt.signature or "")
        policy = await policies.find(service, payer.org, payer.policy.policy_id)
        found = violation(service.codec, logs, policy, payer.levels) if logs else None
        if found is not None:
            policy_id, tx_id = outcome.attempt.policy_id or policy.policy_id, outcome.attempt.tx_id
            if rule in HOLDING_RULES:
                # An allowance may have been granted since the simulation.
                await service.catch_up()
            holding = await allowances_behind_violation(service, principal, payer, found)
            return PolicyViolationError(
                violation=found,
                wallet_id=payer.wallet_id,
                policy_id=policy_id,
                tx_id=tx_id,
                remedy=HELD if holding else None,
                open_allowances=holding,
            )
    return business_error(service.codec, outcome)
