"""Valid calls of every instruction, one for each way to use it. Those of escrows are in `escrow_calls`."""

from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses, org_hash
from app.chain.instructions import Instructions
from app.chain.rules import BudgetLimits
from tests.program.adversaries.stage import APPROVED, GUARDED, Party
from tests.program.adversaries.ways import REFERENCE, Call, Seeds, way
from tests.support.vm import CODEC, PROGRAM_ID
from tests.support.vm_world import GENESIS_HASH, OPEN, SESSION_ENDS

KEY = b"new policy's key"


@way("initialize_org")
def _(party: Party) -> Call:
    addresses = Addresses(PROGRAM_ID, party.mint)
    org = addresses.org(party.authority, "second")
    presets = ("conservative", "moderate", "permissive", "locked")
    instruction = Instructions(CODEC, addresses, org).initialize_org(
        payer=party.payer,
        creator=party.authority,
        org_id="second",
        genesis_hash=GENESIS_HASH,
        operator=party.operator,
        arbiter=party.arbiter,
        verifier=party.verifier,
    )
    seeds: dict[str, Seeds] = {"org": (b"org", bytes(party.authority), org_hash("second"))}
    for preset in presets:
        seeds[f"preset_{preset}"] = (b"policy", bytes(org), f"pol_{preset}".encode().ljust(16, b"\0"))
    return Call(instruction, seeds)


@way("migrate")
def _(party: Party) -> Instruction:
    return party.build.migrate(payer=party.payer, account=party.earlier)


@way("update_org")
def _(party: Party) -> Instruction:
    return party.org_update(operator_daily_limit=1)


@way("update_org by operator")
def _(party: Party) -> Instruction:
    return party.build.update_org(signer=party.operator, paused=True)


@way("accept_authority")
def _(party: Party) -> Instruction:
    return party.build.accept_authority(new_authority=party.heir)


@way("create_policy")
def _(party: Party) -> Call:
    instruction = party.build.create_policy(payer=party.payer, authority=party.authority, key=KEY, rules=OPEN)
    return Call(instruction, {"policy": (b"policy", bytes(party.org), KEY)})


@way("update_policy")
def _(party: Party) -> Instruction:
    return party.policy_update(
        party.guarded,
        GUARDED,
        new_allowlist=party.next_list,
        old_allowlist=party.list_of(party.guarded),
        rent_receiver=party.payer,
    )


@way("close_policy")
def _(party: Party) -> Instruction:
    return party.policy_closing(
        party.unused, allowlist_rent_receiver=party.list_payer, next_rent_receiver=party.next_payer
    )


@way("close_allowlist")
def _(party: Party) -> Instruction:
    return party.build.close_allowlist(
        authority=party.authority,
        policy=party.half_written,
        version=party.fields(party.half_written)["next_allowlist_version"],
        rent_receiver=party.payer,
    )


@way("create_budget")
def _(party: Party) -> Call:
    limits = BudgetLimits(max_per_day=1)
    instruction = party.build.create_budget(
        payer=party.payer, authority=party.authority, key=KEY, limits=limits, parent=party.company
    )
    return Call(instruction, {"budget": (b"budget", bytes(party.org), KEY)})


@way("update_budget")
def _(party: Party) -> Instruction:
    return party.budget_update(party.team, max_per_day=1)


@way("close_budget")
def _(party: Party) -> Instruction:
    return party.budget_closing(party.unused_budget)


@way("freeze_budget operator")
def _(party: Party) -> Instruction:
    return party.build.freeze_budget(signer=party.operator, budget=party.team)


@way("freeze_budget authority")
def _(party: Party) -> Instruction:
    return party.build.freeze_budget(signer=party.authority, budget=party.company)


@way("forget_payee")
def _(party: Party) -> Instruction:
    return party.build.forget_payee(operator=party.operator, vault=party.capped, address=party.merchant.owner)


@way("unfreeze_budget")
def _(party: Party) -> Instruction:
    return party.build.unfreeze_budget(authority=party.authority, budget=party.frozen_budget)


@way("set_wallet_budget first")
def _(party: Party) -> Instruction:
    return party.build.set_wallet_budget(
        signer=party.operator,
        authority=party.authority,
        vault=party.frozen,
        new_budget=party.team,
        new_parent=party.company,
    )


@way("set_wallet_budget other")
def _(party: Party) -> Instruction:
    return party.joining(party.vault, party.unused_budget)


@way("set_wallet_budget none")
def _(party: Party) -> Instruction:
    return party.joining(party.vault, None)


@way("write_allowlist first")
def _(party: Party) -> Call:
    version: int = party.fields(party.fresh)["next_allowlist_version"]
    seeds = (b"allowlist", bytes(party.fresh), version.to_bytes(8, "little"))
    return Call(party.chunk(party.fresh, [bytes(32)]), {"allowlist": seeds})


@way("write_allowlist next")
def _(party: Party) -> Instruction:
    return party.chunk(party.half_written, [b"\xff" * 32], offset=1, writer=party.authority)


@way("create_wallet")
def _(party: Party) -> Call:
    instruction = party.build.create_wallet(
        payer=party.payer,
        operator=party.operator,
        agent_id="new",
        policy=party.fresh,
        session=(party.session, SESSION_ENDS),
        authority=party.authority,
    )
    return Call(instruction, {"vault": (b"vault", bytes(party.org), org_hash("new"))})


@way("update_wallet")
def _(party: Party) -> Instruction:
    return party.build.update_wallet(
        operator=party.operator,
        vault=party.vault,
        session=(party.session, 0),
        policy=party.guarded,
        new_policy=party.fresh,
        authority=party.authority,
    )


@way("freeze_wallet freeze")
def _(party: Party) -> Instruction:
    return party.freeze(party.vault)


@way("freeze_wallet expire")
def _(party: Party) -> Instruction:
    return party.freeze(party.expired, "Expire", signer=party.stranger)


@way("freeze_wallet unfreeze")
def _(party: Party) -> Instruction:
    return party.freeze(party.frozen, "Unfreeze", signer=party.authority)


@way("close_wallet")
def _(party: Party) -> Instruction:
    return party.build.close_wallet(
        operator=party.operator,
        vault=party.idle,
        policy=party.fields(party.idle)["policy"],
        rent_receiver=party.payer,
        budget=party.team,
    )


@way("fund_wallet")
def _(party: Party) -> Instruction:
    balance = party.balance(party.tokens_of(party.vault))
    return party.funding(party.vault, 5, reference=REFERENCE, only_below=balance + 1)


@way("withdraw live")
def _(party: Party) -> Instruction:
    return party.build.withdraw(operator=party.operator, vault=party.vault, amount=5, reference=REFERENCE)


@way("withdraw archived")
def _(party: Party) -> Instruction:
    return party.build.withdraw(
        operator=party.operator,
        vault=party.archived,
        amount=None,
        reference=REFERENCE,
        rent_receiver=party.payer,
    )


@way("withdraw_reserve")
def _(party: Party) -> Instruction:
    return party.build.withdraw_reserve(
        authority=party.authority,
        destination=party.merchant.tokens,
        amount=5,
        reference=REFERENCE,
        expected_sequence=party.fields(party.org)["authority_sequence"],
    )


@way("register_recipient new")
def _(party: Party) -> Instruction:
    return party.registration(party.heir, 1, "new.example")


@way("register_recipient change")
def _(party: Party) -> Instruction:
    return party.registration(party.merchant.owner, 2, signer=party.authority)


@way("approve_payment")
def _(party: Party) -> Call:
    instruction = party.approving(party.vault, party.merchant.owner, APPROVED, party.vm.now + 60, REFERENCE)
    return Call(instruction, {"approval": (b"approval", bytes(party.vault), REFERENCE)})


@way("close_approval")
def _(party: Party) -> Instruction:
    return party.build.close_approval(
        signer=party.operator, vault=party.vault, approval=party.pending_approval, rent_receiver=party.payer
    )


@way("close_approval overdue")
def _(party: Party) -> Instruction:
    return party.build.close_approval(
        signer=party.stranger, vault=party.vault, approval=party.overdue_approval, rent_receiver=party.payer
    )


def _payment(party: Party, amount: int, **options: Any) -> Instruction:
    return party.payment(party.vault, party.merchant, amount, reference=REFERENCE, **options)


@way("execute_payment plain")
def _(party: Party) -> Instruction:
    return _payment(party, 5)


@way("execute_payment co-signed")
def _(party: Party) -> Instruction:
    return _payment(party, APPROVED, co_signer=party.operator)


@way("execute_payment approved")
def _(party: Party) -> Instruction:
    return _payment(party, APPROVED, approval=party.pending_approval)


@way("check_payment")
def _(party: Party) -> Instruction:
    merchant: Pubkey = party.merchant.owner
    return party.build.check_payment(
        policy=party.guarded,
        vault=party.vault,
        amount=5,
        recipient=merchant,
        co_signed=False,
        allowlist=party.list_of(party.guarded),
        recipient_account=party.addresses.recipient(party.org, merchant),
        budget=party.team,
        budget_parent=party.company,
    )
