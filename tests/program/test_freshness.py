"""Transactions that were signed, kept with a durable nonce, and sent after the state has changed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from solders.hash import Hash
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import (
    AdvanceNonceAccountParams,
    advance_nonce_account,
    create_nonce_account,
)
from solders.transaction import Transaction

from app.chain.escrow_instructions import OpenEscrow
from app.chain.instructions import compute_unit_limit
from app.chain.nonces import RENT
from tests.program.adversaries.calls import KEY
from tests.program.adversaries.stage import GUARDED, AttackStage, Party
from tests.program.adversaries.ways import CALLS, Call
from tests.support.vm import CODEC, Vm
from tests.support.vm_escrows import dispute
from tests.support.vm_world import NONE, OPEN, SESSION_ENDS

pytestmark = pytest.mark.adversary

PAGE = Path(__file__).parents[2] / "docs" / "on-chain.md"
NONCE = slice(40, 72)
"""Position of the nonce in a nonce account."""
WAYS = {way.name: way for way in CALLS}

Change = Callable[[Party], object]


def _roles(party: Party) -> None:
    party.vm.succeed(party.org_update(operator_daily_limit=10**15))


def _proposal_again(party: Party) -> None:
    party.vm.succeed(party.org_update(pending_authority=NONE))
    party.vm.succeed(party.org_update(pending_authority=party.heir))


def _policy_closed(party: Party) -> None:
    receivers = {"allowlist_rent_receiver": party.list_payer, "next_rent_receiver": party.next_payer}
    party.vm.succeed(party.policy_closing(party.unused, **receivers))


def _policy_closed_and_its_key_used_before(party: Party) -> None:
    build = party.build
    party.vm.succeed(build.create_policy(payer=party.payer, authority=party.authority, key=KEY, rules=OPEN))
    party.vm.succeed(party.policy_closing(party.addresses.policy(party.org, KEY)))


def _budget_closed(party: Party) -> None:
    party.vm.succeed(party.budget_closing(party.unused_budget))


def _budget_limited(party: Party) -> None:
    party.vm.succeed(party.budget_update(party.unused_budget, max_per_day=2))


def _team_limited(party: Party) -> None:
    party.vm.succeed(party.budget_update(party.team, max_per_day=2))


def _company_limited(party: Party) -> None:
    party.vm.succeed(party.budget_update(party.company, max_per_day=2))


def _budget_frozen_again(party: Party) -> None:
    build, budget = party.build, party.frozen_budget
    party.vm.succeed(build.unfreeze_budget(authority=party.authority, budget=budget))
    party.vm.succeed(build.freeze_budget(signer=party.operator, budget=budget))


def _payee_known_again(party: Party) -> None:
    forget = party.build.forget_payee(operator=party.operator, vault=party.capped, address=party.merchant.owner)
    party.vm.succeed(forget)
    party.vm.now += 1
    party.vm.succeed(party.payment(party.capped, party.merchant, co_signer=party.operator))


def _rules_changed(name: str) -> Change:
    return lambda party: party.update_policy(getattr(party, name), GUARDED if name != "fresh" else OPEN)


def _moved(name: str) -> Change:
    """Attach the vault to another policy and back, so that only the count of attachments differs."""

    def change(party: Party) -> None:
        vault = getattr(party, name)
        first, other = party.fields(vault)["policy"], party.policy()
        for policy, new in ((first, other), (other, first)):
            party.vm.succeed(
                party.build.update_wallet(
                    operator=party.operator, vault=vault, policy=policy, new_policy=new, authority=party.authority
                )
            )

    return change


def _session_changed(party: Party) -> None:
    session = (party.session, SESSION_ENDS)
    party.vm.succeed(party.build.update_wallet(operator=party.operator, vault=party.vault, session=session))


def _approved_another(party: Party) -> None:
    party.approval(party.vault, party.merchant, 1)


def _frozen(party: Party) -> None:
    party.vm.succeed(party.freeze(party.idle))


def _frozen_again(party: Party) -> None:
    party.vm.succeed(party.freeze(party.frozen, "Unfreeze", signer=party.authority))
    party.vm.succeed(party.freeze(party.frozen))


def _registered(address: Callable[[Party], Pubkey]) -> Change:
    return lambda party: party.vm.succeed(party.registration(address(party), 3, signer=party.authority))


def _disputed_by_the_other(escrow: Callable[[Party], OpenEscrow], *, by_receiver: bool) -> Change:
    """Withdraw the dispute and raise one for the other side."""

    def change(party: Party) -> None:
        at, first, other = escrow(party), party.session, party.worker.key
        if by_receiver:
            first, other = other, first
        party.vm.succeed(party.build.withdraw_dispute(at, signer=first))
        party.vm.succeed(dispute(party, at, other))

    return change


def _withdrawn(party: Party) -> None:
    party.vm.succeed(party.build.withdraw_dispute(party.newcomers_argued, signer=party.session))


def _list_started_over(party: Party) -> None:
    version = party.fields(party.half_written)["next_allowlist_version"]
    discard = party.build.close_allowlist(
        authority=party.authority, policy=party.half_written, version=version, rent_receiver=party.payer
    )
    party.vm.succeed(discard)
    party.vm.succeed(party.chunk(party.half_written, [bytes(32)], seal=False))


_ARGUED = _disputed_by_the_other(lambda party: party.argued, by_receiver=False)

STALE: dict[str, tuple[tuple[Change, str], ...]] = {
    "update_org": ((_roles, "SequenceMismatch"),),
    "accept_authority": ((_proposal_again, "SequenceMismatch"),),
    "create_policy": (
        (_policy_closed, "SequenceMismatch"),
        (_policy_closed_and_its_key_used_before, "SequenceMismatch"),
        (_budget_closed, "SequenceMismatch"),
    ),
    "update_policy": ((_rules_changed("guarded"), "VersionMismatch"),),
    "close_policy": ((_rules_changed("unused"), "VersionMismatch"),),
    "close_allowlist": ((_list_started_over, "AccountDataTooSmall"),),
    "create_budget": (
        (_budget_closed, "SequenceMismatch"),
        (_policy_closed, "SequenceMismatch"),
        (_company_limited, "VersionMismatch"),
    ),
    "update_budget": ((_team_limited, "VersionMismatch"),),
    "close_budget": ((_budget_limited, "VersionMismatch"),),
    "forget_payee": ((_payee_known_again, "SequenceMismatch"),),
    "unfreeze_budget": ((_budget_frozen_again, "SequenceMismatch"),),
    "set_wallet_budget first": (
        (_moved("frozen"), "SequenceMismatch"),
        (_team_limited, "VersionMismatch"),
        (_company_limited, "VersionMismatch"),
    ),
    "set_wallet_budget other": (
        (_moved("vault"), "SequenceMismatch"),
        (_budget_limited, "VersionMismatch"),
        (_company_limited, "VersionMismatch"),
    ),
    "set_wallet_budget none": ((_moved("vault"), "SequenceMismatch"),),
    "create_wallet": ((_rules_changed("fresh"), "VersionMismatch"),),
    "update_wallet": (
        (_moved("vault"), "SequenceMismatch"),
        (_session_changed, "SequenceMismatch"),
        (_rules_changed("fresh"), "VersionMismatch"),
    ),
    "close_wallet": ((_frozen, "SequenceMismatch"),),
    "freeze_wallet unfreeze": ((_frozen_again, "SequenceMismatch"),),
    "withdraw_reserve": ((_roles, "SequenceMismatch"),),
    "register_recipient new": ((_registered(lambda party: party.heir), "Unauthorized"),),
    "register_recipient change": ((_registered(lambda party: party.merchant.owner), "SequenceMismatch"),),
    "approve_payment": ((_rules_changed("guarded"), "VersionMismatch"), (_approved_another, "SequenceMismatch")),
    "write_allowlist next": ((_list_started_over, "AllowlistGap"),),
    "withdraw_dispute requester": ((_ARGUED, "SequenceMismatch"),),
    "withdraw_dispute receiver": (
        (_disputed_by_the_other(lambda party: party.argued_by_receiver, by_receiver=True), "SequenceMismatch"),
    ),
    "resolve_dispute release": ((_ARGUED, "SequenceMismatch"),),
    "resolve_dispute refund": ((_ARGUED, "SequenceMismatch"),),
    "resolve_dispute split": ((_withdrawn, "EscrowNotDisputed"),),
}
"""Changes after which a call of this kind fails, and the error."""
EXEMPT = {
    *("initialize_org", "update_org by operator", "freeze_wallet freeze", "freeze_wallet expire"),
    *("write_allowlist first", "freeze_budget operator", "freeze_budget authority"),
    *("fund_wallet", "withdraw live", "withdraw archived", "close_approval", "close_approval overdue", "migrate"),
    *("execute_payment plain", "execute_payment co-signed", "execute_payment approved", "check_payment"),
    *("create_escrow plain", "create_escrow outside", "create_escrow co-signed", "create_escrow approved"),
    *("complete_escrow requester", "complete_escrow receiver", "complete_escrow newcomer"),
    *("complete_escrow attested", "complete_escrow verified", "refund_escrow due", "refund_escrow undecided"),
    *("dispute_escrow requester", "dispute_escrow receiver", "collect_escrow", "collect_escrow newcomer"),
    *("grant_allowance session", "grant_allowance operator", "grant_allowance approved"),
    *("settle_allowance operator", "settle_allowance session", "settle_allowance authority"),
    *("settle_allowance due", "settle_allowance outdated"),
}
"""Calls that name no state. The page says why."""


def keep(vm: Vm, call: Call) -> Transaction:
    """Sign a call with a durable nonce."""
    nonce, payer = vm.key(), vm.fee_payer
    vm.succeed(*create_nonce_account(payer, nonce, payer, RENT))
    advance = advance_nonce_account(AdvanceNonceAccountParams(nonce_pubkey=nonce, authorized_pubkey=payer))
    value = Hash.from_bytes(vm.data(nonce)[NONCE])
    message = Message.new_with_blockhash([advance, compute_unit_limit(1_400_000), *call.instructions], payer, value)
    signers = [vm.signer(key) for key in message.account_keys[: message.header.num_required_signatures]]
    return Transaction(signers, message, value)


@pytest.mark.parametrize(
    ("way", "change", "error"),
    [
        pytest.param(way, change, error, id=f"{way} {number}")
        for way, changes in STALE.items()
        for number, (change, error) in enumerate(changes)
    ],
)
def test_kept_transaction_fails_once_its_state_has_changed(way: str, change: Change, error: str) -> None:
    stage = AttackStage()
    kept = keep(stage.vm, WAYS[way].make(stage.victim))
    change(stage.victim)
    stage.vm.renew_blockhash()
    assert stage.vm.submit(kept).error == error


@pytest.mark.parametrize("way", sorted(EXEMPT))
def test_kept_transaction_that_names_no_state_outlasts_other_changes(way: str) -> None:
    stage = AttackStage()
    kept = keep(stage.vm, WAYS[way].make(stage.victim))
    _roles(stage.victim)
    stage.vm.renew_blockhash()
    assert stage.vm.submit(kept).error is None


def test_every_call_names_its_state_or_is_exempt() -> None:
    assert STALE.keys() | EXEMPT == WAYS.keys()
    assert not STALE.keys() & EXEMPT


def test_page_lists_every_instruction_with_what_it_names() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Kept transactions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, flags=re.MULTILINE)
    names = [(name, named) for cell, named in rows for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(name for name, _ in names) == sorted(one["name"] for one in CODEC.idl["instructions"])
    naming = {name for name, named in names if named != "nothing"}
    assert naming == {way.partition(" ")[0] for way in STALE}


def test_old_leave_of_a_budget_does_not_land_months_later() -> None:
    """An authority's "leave the budget" was kept while the vault left and joined again."""
    stage = AttackStage()
    party = stage.victim
    kept = keep(stage.vm, Call(party.joining(party.vault, None)))
    party.vm.succeed(party.joining(party.vault, party.unused_budget))
    party.vm.succeed(party.joining(party.vault, party.team))
    party.vm.now += 90 * 86_400
    party.vm.renew_blockhash()
    assert party.vm.submit(kept).error == "SequenceMismatch"
    assert party.budget_of(party.vault) == party.team
