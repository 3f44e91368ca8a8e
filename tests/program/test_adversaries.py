"""Tries every attack on accounts that the IDL allows: each is refused with its error and changes nothing."""

from collections.abc import Mapping

import pytest
from solders.instruction import AccountMeta, Instruction

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM
from tests.program.adversaries import table
from tests.program.adversaries.attacks import Attack, attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Call, Way, slots
from tests.support.vm import CODEC
from tests.support.vm_allowances import LONGEST, MINUTE

pytestmark = pytest.mark.adversary

REFUSALS = table.read()
WAYS = [way.name for way in CALLS]

AGAIN = {
    "initialize_org": "System:0",
    "migrate": "UnsupportedLayout",
    "update_org": "SequenceMismatch",
    "withdraw_reserve": "SequenceMismatch",
    "accept_authority": "Unauthorized",
    "create_policy": "System:0",
    "update_policy": "AccountDataTooSmall",
    "close_policy": "AccountDataTooSmall",
    "close_allowlist": "AccountDataTooSmall",
    "create_budget": "System:0",
    "update_budget": "VersionMismatch",
    "close_budget": "AccountDataTooSmall",
    "freeze_budget operator": "AlreadyFrozen",
    "freeze_budget authority": "AlreadyFrozen",
    "unfreeze_budget": "NotFrozen",
    "forget_payee": "PayeeUnknown",
    "set_wallet_budget first": "BudgetRequired",
    "set_wallet_budget other": "WrongBudget",
    "set_wallet_budget none": "WrongBudget",
    "write_allowlist first": "AllowlistSealed",
    "write_allowlist next": "AllowlistSealed",
    "create_wallet": "System:0",
    "update_wallet": "WrongPolicy",
    "update_org by operator": "AlreadyPaused",
    "freeze_wallet freeze": "AlreadyFrozen",
    "freeze_wallet expire": "AlreadyFrozen",
    "freeze_wallet unfreeze": "NotFrozen",
    "close_wallet": "AccountDataTooSmall",
    "fund_wallet": "BalanceNotBelow",
    "withdraw archived": "ZeroAmount",
    "register_recipient new": "Unauthorized",
    "register_recipient change": "SequenceMismatch",
    "approve_payment": "SequenceMismatch",
    "close_approval": "AccountDataTooSmall",
    "close_approval overdue": "AccountDataTooSmall",
    "execute_payment approved": "AccountDataTooSmall",
    "create_escrow plain": "InvalidSeeds",
    "create_escrow outside": "InvalidSeeds",
    "create_escrow co-signed": "InvalidSeeds",
    "create_escrow approved": "AccountDataTooSmall",
    "complete_escrow requester": "AccountDataTooSmall",
    "complete_escrow receiver": "AccountDataTooSmall",
    "complete_escrow newcomer": "AccountDataTooSmall",
    "complete_escrow attested": "AccountDataTooSmall",
    "complete_escrow verified": "AccountDataTooSmall",
    "refund_escrow due": "AccountDataTooSmall",
    "refund_escrow undecided": "AccountDataTooSmall",
    "dispute_escrow requester": "EscrowDisputed",
    "dispute_escrow receiver": "EscrowDisputed",
    "withdraw_dispute requester": "EscrowNotDisputed",
    "withdraw_dispute receiver": "EscrowNotDisputed",
    "collect_escrow": "AccountDataTooSmall",
    "collect_escrow newcomer": "AccountDataTooSmall",
    "resolve_dispute release": "AccountDataTooSmall",
    "resolve_dispute refund": "AccountDataTooSmall",
    "resolve_dispute split": "AccountDataTooSmall",
    "grant_allowance session": "InvalidSeeds",
    "grant_allowance operator": "InvalidSeeds",
    "grant_allowance approved": "AccountDataTooSmall",
    "settle_allowance operator": "AccountDataTooSmall",
    "settle_allowance session": "AccountDataTooSmall",
    "settle_allowance authority": "AccountDataTooSmall",
    "settle_allowance due": "AccountDataTooSmall",
    "settle_allowance outdated": "AccountDataTooSmall",
}
"""The error of the same instruction signed again with another blockhash."""
REPEATABLE = {
    "withdraw live": "is another withdrawal, signed by the operator",
    "execute_payment plain": "is another payment, signed by the session authority",
    "execute_payment co-signed": "is another payment, signed by both",
    "check_payment": "changes nothing",
}
"""Calls that may be signed again, and what that does."""

UNREAD = {
    "refund_escrow": (
        *("payer", "signer", "receiver", "receiver_tokens"),
        *("associated_token_program", "system_program", "instructions"),
    ),
    "resolve_dispute": ("instructions",),
    "collect_escrow": ("signer", "instructions", "budget", "budget_parent"),
}
"""Optional accounts that the settling instructions share, and that this one does not need."""
PROGRAMS = {"associated_token_program": ASSOCIATED_TOKEN_PROGRAM, "system_program": SYSTEM_PROGRAM}
"""Only these are accepted, whether needed or not."""


def _renewed(stage: AttackStage, attack: Attack) -> Call:
    """Return an attack's call as it would be made now: on a validator the attacks take longer than a grant may last."""
    return attack.call.renewed(stage.vm.now + MINUTE)


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


@pytest.fixture(scope="module", name="made")
def _made(stage: AttackStage) -> Mapping[table.Key, Attack]:
    """Every attack that follows from the IDL."""
    return {(one.way, one.account, one.kind): one for way in CALLS for one in attacks(stage, way)}


def test_every_instruction_of_the_idl_has_a_valid_call() -> None:
    assert {way.instruction for way in CALLS} == {item["name"] for item in CODEC.idl["instructions"]}


@pytest.mark.parametrize("way", CALLS, ids=WAYS)
def test_call_without_an_attack_is_accepted(stage: AttackStage, way: Way) -> None:
    for party in (stage.victim, stage.other):
        result = stage.vm.simulate(*way.make(party).instructions)
        assert result.error is None


def test_table_lists_every_attack_and_nothing_else(made: Mapping[table.Key, Attack]) -> None:
    expected = {key for key, attack in made.items() if not attack.harmless}
    assert set(REFUSALS) == expected, "run python -m tests.program.adversaries.table and review the difference"


def test_every_account_of_every_instruction_is_attacked(made: Mapping[table.Key, Attack]) -> None:
    attacked = {(way.partition(" ")[0], account) for way, account, _ in made}
    attacked |= {(instruction, account) for instruction, accounts in UNREAD.items() for account in accounts}
    for item in CODEC.idl["instructions"]:
        assert {(item["name"], account["name"]) for account in item["accounts"]} <= attacked


@pytest.mark.parametrize("key", REFUSALS, ids=" - ".join)
def test_attack_is_refused_and_changes_nothing(
    stage: AttackStage, made: Mapping[table.Key, Attack], key: table.Key
) -> None:
    stage.vm.refuse(REFUSALS[key], *_renewed(stage, made[key]).instructions)


def test_harmless_change_is_accepted(stage: AttackStage, made: Mapping[table.Key, Attack]) -> None:
    harmless = {key: attack for key, attack in made.items() if attack.harmless}
    errors = {key: stage.vm.simulate(*_renewed(stage, attack).instructions).error for key, attack in harmless.items()}
    assert errors == dict.fromkeys(harmless)


def test_attack_made_long_ago_is_refused_for_its_own_fault() -> None:
    # Given attacks on grants, and a chain that has gone on for longer than a grant may last
    stage = AttackStage()
    (way,) = (way for way in CALLS if way.name == "grant_allowance session")
    made = {(one.way, one.account, one.kind): one for one in attacks(stage, way)}
    stage.vm.now += LONGEST + 1
    # Then it is not the time for which they are refused
    for key in REFUSALS.keys() & made.keys():
        stage.vm.refuse(REFUSALS[key], *_renewed(stage, made[key]).instructions)


def test_every_call_says_what_happens_when_it_is_signed_again() -> None:
    assert AGAIN.keys() | REPEATABLE.keys() == set(WAYS)
    assert not AGAIN.keys() & REPEATABLE.keys()


@pytest.mark.parametrize("way", CALLS, ids=WAYS)
def test_replay_is_refused_and_one_time_calls_cannot_be_repeated(way: Way) -> None:
    stage = AttackStage()
    instructions = way.make(stage.victim).instructions
    transaction = stage.vm.transaction(*instructions)
    assert stage.vm.submit(transaction).error is None
    stage.vm.refuse_transaction("AlreadyProcessed", transaction)
    if way.name in AGAIN:
        stage.vm.refuse(AGAIN[way.name], *instructions)
    else:
        stage.vm.succeed(*instructions)


@pytest.mark.parametrize("instruction", UNREAD)
def test_accounts_an_instruction_does_not_need_have_no_effect(stage: AttackStage, instruction: str) -> None:
    # Given a call with an attacker's accounts in the places that are normally left empty
    (way, *_) = (way for way in CALLS if way.instruction == instruction)
    vm, call = stage.vm, way.make(stage.victim).instruction
    accounts = list(call.accounts)
    # No account is written twice
    written = iter((stage.attackers_tokens, stage.other.merchant.tokens))
    for index, slot in enumerate(slots(instruction)):
        if slot.name in UNREAD[instruction]:
            given = PROGRAMS.get(slot.name) or (next(written) if slot.writable and not slot.signer else stage.attacker)
            accounts[index] = AccountMeta(given, is_signer=slot.signer, is_writable=slot.writable)
    filled = Instruction(call.program_id, call.data, accounts)
    # Then it reports and moves the same as the call without them
    assert vm.simulate(filled).event == vm.simulate(call).event
    assert vm.simulate(filled).transfers == vm.simulate(call).transfers
