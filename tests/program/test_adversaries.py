"""Every attack that the IDL's accounts allow, on every instruction: each has its error and changes nothing."""

from collections.abc import Mapping

import pytest

from tests.program.adversaries import table
from tests.program.adversaries.attacks import Attack, attacks
from tests.program.adversaries.calls import CALLS, Way
from tests.program.adversaries.stage import Stage
from tests.program.vm import CODEC

REFUSALS = table.read()
WAYS = [way.name for way in CALLS]

AGAIN = {
    "initialize_org": "System:0",
    "accept_authority": "Unauthorized",
    "create_policy": "System:0",
    "update_policy": "AccountDataTooSmall",
    "close_policy": "AccountDataTooSmall",
    "write_allowlist next": "AllowlistGap",
    "create_wallet": "System:0",
    "update_wallet": "WrongPolicy",
    "freeze_wallet freeze": "AlreadyFrozen",
    "freeze_wallet expire": "AlreadyFrozen",
    "freeze_wallet unfreeze": "NotFrozen",
    "close_wallet": "AccountDataTooSmall",
    "fund_wallet": "SequenceMismatch",
    "withdraw archived": "ZeroAmount",
    "register_recipient new": "Unauthorized",
    "approve_payment": "System:0",
    "close_approval": "AccountDataTooSmall",
    "close_approval overdue": "AccountDataTooSmall",
    "execute_payment approved": "AccountDataTooSmall",
}
"""What the same instruction is refused with when it is signed again, under another blockhash."""
REPEATABLE = {
    "update_org": "sets the same values again",
    "update_org by operator": "pauses again",
    "write_allowlist first": "starts the same list again",
    "withdraw live": "is another withdrawal, which the operator signs",
    "withdraw_reserve": "is another withdrawal, which the authority signs",
    "register_recipient change": "says the same again, which the authority signs",
    "execute_payment plain": "is another payment, which the session authority signs",
    "execute_payment co-signed": "is another payment, which both sign",
    "check_payment": "changes nothing",
}
"""What may be signed again, and what it does then."""


@pytest.fixture(scope="module", name="stage")
def _stage() -> Stage:
    return Stage()


@pytest.fixture(scope="module", name="made")
def _made(stage: Stage) -> Mapping[table.Key, Attack]:
    """Every attack that the IDL gives rise to."""
    return {(one.way, one.account, one.kind): one for way in CALLS for one in attacks(stage, way)}


def test_every_instruction_of_the_idl_has_a_valid_call() -> None:
    assert {way.instruction for way in CALLS} == {item["name"] for item in CODEC.idl["instructions"]}


@pytest.mark.parametrize("way", CALLS, ids=WAYS)
def test_call_without_an_attack_is_accepted(stage: Stage, way: Way) -> None:
    for party in (stage.victim, stage.other):
        result = stage.vm.simulate(way.make(party).instruction)
        assert result.error is None


def test_every_attack_stands_in_the_table_and_nothing_else(made: Mapping[table.Key, Attack]) -> None:
    expected = {key for key, attack in made.items() if not attack.harmless}
    assert set(REFUSALS) == expected, "run python -m tests.program.adversaries.table and review the difference"


def test_every_account_of_every_instruction_is_attacked(made: Mapping[table.Key, Attack]) -> None:
    attacked = {(way.partition(" ")[0], account) for way, account, _ in made}
    for item in CODEC.idl["instructions"]:
        assert {(item["name"], account["name"]) for account in item["accounts"]} <= attacked


@pytest.mark.parametrize("key", REFUSALS, ids=" - ".join)
def test_attack_is_refused_and_changes_nothing(stage: Stage, made: Mapping[table.Key, Attack], key: table.Key) -> None:
    stage.vm.refuse(REFUSALS[key], made[key].instruction)


def test_what_counts_as_no_attack_is_accepted(stage: Stage, made: Mapping[table.Key, Attack]) -> None:
    harmless = {key: attack for key, attack in made.items() if attack.harmless}
    errors = {key: stage.vm.simulate(attack.instruction).error for key, attack in harmless.items()}
    assert errors == dict.fromkeys(harmless)


def test_every_call_says_what_becomes_of_it_when_signed_again() -> None:
    assert AGAIN.keys() | REPEATABLE.keys() == set(WAYS)
    assert not AGAIN.keys() & REPEATABLE.keys()


@pytest.mark.parametrize("way", CALLS, ids=WAYS)
def test_replay_is_refused_and_so_is_doing_again_what_is_done_once(way: Way) -> None:
    stage = Stage()
    instruction = way.make(stage.victim).instruction
    transaction = stage.vm.transaction(instruction)
    assert stage.vm.submit(transaction).error is None
    stage.vm.refuse_transaction("AlreadyProcessed", transaction)
    if way.name in AGAIN:
        stage.vm.refuse(AGAIN[way.name], instruction)
    else:
        stage.vm.succeed(instruction)
