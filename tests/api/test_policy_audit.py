"""The audit log of policies: every change with its author, either an API key or a signer on the chain."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from based58 import b58encode
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.instruction import CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from app.access.keyring import KeyRing
from app.chain.rules import Rules
from app.core.signers import Signer
from app.core.timestamps import parse_iso_ms
from app.policies import audit as policy_audit
from app.store.policies import policy
from app.submission.recovery import Recovery
from tests.support.lookup_tables import lookup_table
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _path(made: Json) -> str:
    return f"/v1/policies/{made['policy_id']}"


async def _id_of(world: ServiceWorld, key: str) -> str:
    principal = await world.service.part(KeyRing).recognise(key, None)
    assert principal is not None
    return principal.key_id


async def _log(world: ServiceWorld, made: Json, **options: Any) -> list[Json]:
    data: list[Json] = (await world.ok("GET", f"{_path(made)}/audit-log", **options))["data"]
    return data


def _change(world: ServiceWorld, made: Json, signer: Signer, rules: Rules) -> Instruction:
    """Return a change of a policy without an allowlist."""
    found = world.service.db.read_now(lambda conn: policy(conn, world.org, made["policy_id"]))
    assert found is not None
    return world.build.update_policy(
        authority=signer.pubkey(),
        policy=Pubkey.from_string(found.address),
        expected_version=found.version,
        rules=rules,
    )


async def _change_past(world: ServiceWorld, made: Json, signer: Signer, rules: Rules) -> None:
    """Change a policy that has no allowlist without the service."""
    assert (await world.land([_change(world, made, signer, rules)], signer)).err is None
    await world.catch_up()


async def _lookup_table(world: ServiceWorld, addresses: list[Pubkey]) -> AddressLookupTableAccount:
    """Create a lookup table with these addresses on the chain."""
    payer = world.service.signers.fee_payer
    await world.later(4)
    table, making = lookup_table(payer.pubkey(), world.localnet.chain.slot(), addresses)
    await world.later(4)
    for instruction in making:
        assert (await world.land([instruction])).err is None
    await world.later(4)
    return table


def _called_by_a_program(landed: Json, program: Pubkey) -> None:
    """Make a transaction look as if another program had called this one."""
    sent = VersionedTransaction.from_bytes(base64.b64decode(landed["transaction"][0]))
    old, keys = sent.message, list(sent.message.account_keys)
    inner = {group["index"]: group["instructions"] for group in landed["meta"]["innerInstructions"]}
    outer = list(old.instructions)
    for index, one in enumerate(outer):
        if keys[one.program_id_index] == program:
            data = b58encode(bytes(one.data)).decode()
            call = {"programIdIndex": one.program_id_index, "accounts": list(one.accounts), "data": data}
            inner[index].insert(0, call)
            outer[index] = CompiledInstruction(len(keys), b"", bytes(one.accounts))
    message = MessageV0(old.header, [*keys, Pubkey.new_unique()], old.recent_blockhash, outer, [])
    landed["transaction"][0] = base64.b64encode(bytes(VersionedTransaction.populate(message, sent.signatures))).decode()


def _alter_transactions(world: ServiceWorld, alter: Callable[[Json], None]) -> None:
    """Let `alter` change the transactions that the node returns."""

    def altered(method: str, result: Any) -> Any:
        if method == "getTransaction":
            alter(result)
        return result

    world.line.alter = altered


@pytest.mark.proves(
    "GET /v1/policies/{policy_id}/audit-log", "AuditEntry(timestamp, changed_by, actor, changes)", "Change(from, to)"
)
async def test_changes_are_logged_in_order_with_the_keys_that_asked(world: ServiceWorld) -> None:
    first, second = world.keys["admin"], world.key("admin")
    friend = str(Keypair().pubkey())
    made = await world.policy(maxPerTx="5")
    assert await _log(world, made) == []

    await world.ok("PATCH", _path(made), {"maxPerTx": "6", "expiry": "2031-01-01T00:00:00Z"}, key=first)
    await world.ok("PATCH", _path(made), {"name": "Renamed"}, key=second)
    await world.ok("PATCH", _path(made), {"maxPerTx": "6"}, key=second)
    await world.ok("PATCH", _path(made), {"name": "Again", "allowedRecipients": [friend], "maxPerTx": None}, key=second)
    await world.ok("PATCH", _path(made), {"allowedRecipients": []}, key=first)

    entries = await _log(world, made)
    assert [entry["changed_by"] for entry in entries] == [
        await _id_of(world, key) for key in (first, second, second, first)
    ]
    assert [entry["changes"] for entry in entries] == [
        {"max_per_tx": {"from": "5.00", "to": "6.00"}, "expiry": {"from": None, "to": "2031-01-01T00:00:00Z"}},
        {"name": {"from": made["name"], "to": "Renamed"}},
        {
            "max_per_tx": {"from": "6.00", "to": None},
            "allowed_recipients": {"from": [], "to": [friend]},
            "name": {"from": "Renamed", "to": "Again"},
        },
        {"allowed_recipients": {"from": [friend], "to": []}},
    ]
    moments = [parse_iso_ms(entry["timestamp"]) for entry in entries]
    assert moments == sorted(moments)
    assert moments[0] >= parse_iso_ms(made["created_at"])


@pytest.mark.parametrize("count", [2, 50])
async def test_creation_and_cloning_are_no_changes(world: ServiceWorld, count: int) -> None:
    friends = [str(Keypair().pubkey()) for _ in range(count)]
    made = await world.policy(allowedRecipients=friends)
    clone = await world.ok("POST", f"{_path(made)}/clone", {"name": "Clone"})

    assert await _log(world, made) == await _log(world, clone) == []


@pytest.mark.proves("AuditEntry(changed_by, actor)", "Actor(id)")
async def test_change_without_the_service_shows_the_authority_of_its_time(own_world: ServiceWorld) -> None:
    world, build = own_world, own_world.build
    made = await world.policy(maxPerTx="5")
    first, second = world.service.signers.require_authority(), Keypair()
    await _change_past(world, made, first, Rules(max_per_tx=6_000_000))
    propose = await world.org_update(first.pubkey(), pending_authority=second.pubkey())
    assert (await world.land([propose], first)).err is None
    accept = build.accept_authority(new_authority=second.pubkey())
    assert (await world.land([accept], second)).err is None
    await _change_past(world, made, second, Rules(max_per_tx=7_000_000))
    authorities = [str(first.pubkey()), str(second.pubkey())]

    # Given a node that loses the requests, then one that answers; after that no transaction is fetched again
    world.line.lose_requests = lambda method: method == "getTransaction"
    assert [entry["changed_by"] for entry in await _log(world, made)] == ["on-chain"] * 2
    world.line.mend()
    entries = await _log(world, made)

    assert [entry["changed_by"] for entry in entries] == authorities
    assert entries[1]["changes"] == {"max_per_tx": {"from": "6.00", "to": "7.00"}}
    with world.line.asked() as methods:
        assert await _log(world, made) == entries
    assert "getTransaction" not in methods


async def test_change_without_the_service_is_found_through_a_lookup_table(
    own_world: ServiceWorld,
) -> None:
    world, signer = own_world, own_world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    change = _change(world, made, signer, Rules(max_per_tx=6_000_000))
    table = await _lookup_table(world, [one.pubkey for one in change.accounts if not one.is_signer])
    payer, blockhash = world.service.signers.fee_payer, (await world.service.chain.blockhash(fresh=True)).hash
    assert isinstance(payer, Keypair)
    assert isinstance(signer, Keypair)
    message = MessageV0.try_compile(payer.pubkey(), [change], [table], blockhash)
    assert change.accounts[2].pubkey not in message.account_keys

    signature = await world.service.chain.send(bytes(VersionedTransaction(message, [payer, signer])))
    status = await world.service.chain.confirm(signature, timeout=5)
    assert status is not None
    assert status.err is None
    await world.catch_up()

    assert [entry["changed_by"] for entry in await _log(world, made)] == [str(signer.pubkey())]


async def test_change_called_by_another_program_names_its_authority(
    own_world: ServiceWorld,
) -> None:
    world, signer = own_world, own_world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    await _change_past(world, made, signer, Rules(max_per_tx=6_000_000))
    _alter_transactions(world, lambda landed: _called_by_a_program(landed, world.service.codec.program_id))

    assert [entry["changed_by"] for entry in await _log(world, made)] == [str(signer.pubkey())]


async def test_transaction_that_does_not_tell_its_signer_is_fetched_once(own_world: ServiceWorld) -> None:
    world, signer = own_world, own_world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    await _change_past(world, made, signer, Rules(max_per_tx=6_000_000))

    def call_and_tell_nothing(landed: Json) -> None:
        _called_by_a_program(landed, world.service.codec.program_id)
        landed["meta"]["innerInstructions"] = None

    _alter_transactions(world, call_and_tell_nothing)

    with world.line.asked() as methods:
        for _ in range(3):
            assert [entry["changed_by"] for entry in await _log(world, made)] == ["on-chain"]
    assert methods.count("getTransaction") == 1


async def test_calls_that_the_node_left_out_are_asked_for_again(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    await _change_past(world, made, signer, Rules(max_per_tx=6_000_000))

    def without_calls(landed: Json) -> None:
        _called_by_a_program(landed, world.service.codec.program_id)
        landed["meta"]["innerInstructions"] = None

    _alter_transactions(world, without_calls)
    hidden = [entry["changed_by"] for entry in await _log(world, made)]
    world.line.mend()
    monkeypatch.setattr(policy_audit, "MISSING_FOR", 0)
    entries = [await _log(world, made) for _ in range(2)][1]

    assert hidden == ["on-chain"]
    assert [entry["changed_by"] for entry in entries] == [str(signer.pubkey())]


async def test_missing_transactions_are_fetched_a_few_at_a_time_and_only_once(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, signer = own_world, own_world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    for amount in (6, 7, 8):
        await _change_past(world, made, signer, Rules(max_per_tx=amount * 1_000_000))
    monkeypatch.setattr(policy_audit, "MAX_ASKED", 2)
    through = world.line.through

    async def without(body: bytes) -> bytes:
        answer = json.loads(await through(body))
        if json.loads(body)["method"] == "getTransaction":
            answer["result"] = None
        return json.dumps(answer).encode()

    world.line.through = without
    asked = []
    with world.line.asked() as methods:
        for _ in range(3):
            assert [entry["changed_by"] for entry in await _log(world, made)] == ["on-chain"] * 3
            asked.append(methods.count("getTransaction"))
    world.line.through = through
    monkeypatch.setattr(policy_audit, "MISSING_FOR", 0)
    entries = [await _log(world, made) for _ in range(2)][1]

    assert asked == [2, 3, 3]
    assert [entry["changed_by"] for entry in entries] == [str(signer.pubkey())] * 3


@pytest.mark.parametrize("nonsense", [{}, {"meta": {}, "transaction": ["AAAA", "base64"]}, {"meta": None}])
async def test_malformed_answer_of_the_node_leaves_the_log_readable(own_world: ServiceWorld, nonsense: Json) -> None:
    world, signer = own_world, own_world.service.signers.require_authority()
    made = await world.policy(maxPerTx="5")
    await _change_past(world, made, signer, Rules(max_per_tx=6_000_000))

    def replace(landed: Json) -> None:
        landed.clear()
        landed.update(nonsense)

    _alter_transactions(world, replace)

    assert [entry["changed_by"] for entry in await _log(world, made)] == ["on-chain"]


async def test_change_that_lost_to_another_one_is_not_credited_with_it(own_world: ServiceWorld) -> None:
    world, loser = own_world, own_world.key("admin")
    made = await world.policy(maxPerTx="5")
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.call("PATCH", _path(made), {"maxPerTx": "9"}, key=loser), 503, "chain_unavailable")
    world.line.mend()
    await world.ok("PATCH", _path(made), {"maxPerTx": "6"})
    await world.service.part(Recovery).recover()
    await world.catch_up()

    [entry] = await _log(world, made)

    assert entry["changed_by"] == await _id_of(world, world.keys["admin"])
    assert entry["changes"] == {"max_per_tx": {"from": "5.00", "to": "6.00"}}


async def test_change_whose_request_was_cut_off_names_its_key_once_it_landed(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="5")
    world.line.lose_answers = lambda method: method == "sendTransaction"
    body = {"maxPerTx": "6", "name": "New"}
    error_of(await world.call("PATCH", _path(made), body), 503, "chain_unavailable")
    world.line.mend()
    await world.restart()
    await world.service.part(Recovery).recover()
    await world.catch_up()

    changes = [entry["changes"] for entry in await _log(world, made)]
    assert changes == [{"max_per_tx": {"from": "5.00", "to": "6.00"}}]
    await world.ok("PATCH", _path(made), body)

    entries = await _log(world, made)
    assert [entry["changed_by"] for entry in entries] == [await _id_of(world, world.keys["admin"])] * 2
    assert entries[1]["changes"] == {"name": {"from": made["name"], "to": "New"}}


async def test_concurrent_changes_are_each_logged_once(world: ServiceWorld) -> None:
    made = await world.policy()
    keys = [world.key("admin") for _ in range(3)]
    bodies: list[Json] = [{"maxPerTx": "1"}, {"maxPerDay": "2"}, {"velocityCap": 3}]

    await asyncio.gather(
        *(world.ok("PATCH", _path(made), body, key=key) for body, key in zip(bodies, keys, strict=True))
    )

    by_field = {name: entry["changed_by"] for entry in await _log(world, made) for name in entry["changes"]}
    ids = [await _id_of(world, key) for key in keys]
    assert by_field == dict(zip(("max_per_tx", "max_per_day", "velocity_cap"), ids, strict=True))


@pytest.mark.proves("GET /v1/policies/{policy_id}/audit-log")
async def test_log_outlives_its_policy_and_readers_may_read_it(world: ServiceWorld) -> None:
    made = await world.policy(allowedRecipients=[str(Keypair().pubkey())])
    await world.ok("PATCH", _path(made), {"maxPerTx": "1"})
    before = await _log(world, made)
    await world.ok("DELETE", _path(made))

    assert await _log(world, made, key=world.key("viewer")) == before
    assert len(before) == 1
    agent = world.key("agent", (await world.wallet(funds=None))["wallet_id"])
    error_of(await world.call("GET", f"{_path(made)}/audit-log", key=agent), 403, "insufficient_permissions")
    error_of(await world.call("GET", "/v1/policies/pol_none/audit-log"), 404, "policy_not_found")
    assert await _log(world, {"policy_id": "pol_locked"}) == []
