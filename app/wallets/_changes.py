"""The on-chain part of a wallet update: the instructions, and the authority if it must sign them."""

from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.access.keyring import Principal
from app.api.fields import optional
from app.budgets import service as budgets
from app.core.errors import AuthenticationError, ConflictError
from app.policies import consent
from app.policies import service as policies
from app.store.organisations import reserve
from app.store.wallets import WalletRecord
from app.submission.chain_state import current_account
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.offline import authority_of
from app.submission.plan import Authority
from app.wallets.freezing import MANUAL
from app.wallets.models import UpdateWallet


async def attaching_authority(service: Service, principal: Principal, claim: Claim) -> Authority | None:
    """Return the authority if it must also sign the attachment of a policy or a first budget.

    Returns None if the operator may attach them alone. If the authority must sign, only an admin's key may attach:
    other keys get ``insufficient_permissions``. Also raises the errors of ``authority_of``.
    """
    state = await service.db.read(lambda conn: reserve(conn, principal.org))
    if state is None or not state.authority_attaches:
        return None
    if principal.role != "admin":
        raise AuthenticationError(
            "insufficient_permissions", "In this organisation, only an admin may attach a policy or a budget."
        )
    return await authority_of(service, principal.org, claim)


async def _move(  # noqa: PLR0917
    service: Service, principal: Principal, claim: Claim, before: WalletRecord, budget_id: str | None, attachments: int
) -> tuple[list[Instruction], Authority | None]:
    """Return the instructions that move a wallet to another budget or none, and the authority if it must sign.

    The operator attaches the first budget. If the organisation has `authority_attaches` set, the authority signs as
    well. Taking a wallet out of a budget evades the budget's limits, so it needs an admin's key and the authority.
    Between a budget and its parent, the wallet first leaves and then joins, because an instruction cannot change a
    budget that it names as a parent.
    """
    new = None if budget_id is None else await budgets.find(service, before.org, budget_id)
    if before.budget is None:
        authority = await attaching_authority(service, principal, claim)
    elif principal.role != "admin":
        raise AuthenticationError("insufficient_permissions", "Only an admin may take a wallet out of its budget.")
    else:
        authority = await authority_of(service, principal.org, claim)
    address = None if authority is None else authority.address
    joining = {} if new is None else budgets.target(new)
    leaving = {
        "budget": optional(Pubkey.from_string, before.budget),
        "budget_parent": optional(Pubkey.from_string, before.budget_parent),
    }
    steps: list[dict[str, Any]] = [leaving | joining]
    if (
        new is not None
        and before.budget is not None
        and {before.budget, new.address} & {before.budget_parent, new.parent}
    ):
        steps = [leaving, joining]
    build, moves = service.instructions(before.org), list[Instruction]()
    for number, step in enumerate(steps):
        leaving_signer = address if step.get("budget") is not None else None
        moves.append(
            build.set_wallet_budget(
                signer=leaving_signer or service.signers.operator_address,
                authority=None if leaving_signer else address,
                vault=Pubkey.from_string(before.vault),
                expected_attachments=attachments + number,
                **step,
            )
        )
    return moves, authority


async def changes(
    service: Service, principal: Principal, claim: Claim, before: WalletRecord, body: UpdateWallet
) -> tuple[list[Instruction], Authority | None]:
    """Return the instructions of an update, and the authority if it must sign them."""
    build, operator = service.instructions(principal.org), service.signers.operator_address
    authority = None
    vault, policy = Pubkey.from_string(before.vault), Pubkey.from_string(before.policy.address)
    instructions: list[Instruction] = []
    replaces = body.policy_id is not None and body.policy_id != before.policy.policy_id
    moves = body.moves and body.budget_id != before.budget_id
    attachments = 0
    if replaces or moves:
        state = await current_account(service, before.vault, "Vault", sequence=before.sequence)
        attachments = state["attachments"]
    if replaces and body.policy_id is not None:
        new_policy = await policies.find(service, principal.org, body.policy_id)
        authority = await attaching_authority(service, principal, claim)
        if new_policy.approvals_next is not None:
            raise ConflictError("version_conflict", "The policy's approvals are being changed. Retry.")
        rule = consent.in_force(await policies.find(service, principal.org, before.policy.policy_id))
        if rule is not None and consent.weakens(rule, new_policy.approvals):
            if claim.sign_offline:
                authority = await authority_of(service, principal.org, claim)
            else:
                made = (new_policy.policy_id, new_policy.approvals, attachments)
                await consent.require_consent(service, principal, before.wallet_id, rule, *made)
        instructions.append(
            build.update_wallet(
                operator=operator,
                vault=vault,
                policy=policy,
                new_policy=Pubkey.from_string(new_policy.address),
                policy_version=new_policy.version,
                expected_attachments=attachments,
                authority=None if authority is None else authority.address,
            )
        )
        policy, attachments = Pubkey.from_string(new_policy.address), attachments + 1
    if moves:
        steps, moving = await _move(service, principal, claim, before, body.budget_id, attachments)
        authority = moving or authority
        instructions += steps
    if body.status == "frozen" and before.frozen != MANUAL:
        instructions.append(build.freeze_wallet(signer=operator, vault=vault, action="Freeze"))
    if body.status == "active" and before.frozen:
        signer = operator
        if before.frozen == MANUAL:
            if principal.role != "admin":
                raise AuthenticationError("insufficient_permissions", "Only an admin may lift a manual freeze.")
            authority = await authority_of(service, principal.org, claim)
            signer = authority.address
        instructions.append(
            build.freeze_wallet(
                signer=signer,
                vault=vault,
                policy=policy,
                action="Unfreeze",
                expected_sequence=before.frozen_sequence,
            )
        )
    return instructions, authority
