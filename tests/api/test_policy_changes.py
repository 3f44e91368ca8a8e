"""Changing, cloning and deleting policies: at once for all wallets, and never undoing a newer change."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection, update

from app.chain.addresses import domain_hash
from app.chain.rules import Rules
from app.store.attempts import attempt, pending_attempts
from app.store.idempotency import table as idempotency
from app.store.policies import PolicyRecord, policy
from app.submission.recovery import Recovery
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a blockhash lives (150 slots of 0.4 s), until that is finalized (32 slots), and the margin (30).
EXPIRY_SECONDS = 90.0
#: More than one transaction holds.
LONG = 50


def _path(made: Json) -> str:
    return f"/v1/policies/{made['policy_id']}"


def _addresses(count: int) -> list[str]:
    return sorted((str(Keypair().pubkey()) for _ in range(count)), key=lambda text: bytes(Pubkey.from_string(text)))


def _stored(world: ServiceWorld, made: Json) -> PolicyRecord:
    found = world.service.db.read_now(lambda conn: policy(conn, world.org, made["policy_id"]))
    assert found is not None
    return found


async def _lists(world: ServiceWorld, made: Json) -> list[Pubkey]:
    """Return the addresses of the policy's allowlists on the chain, in force or as drafts, the oldest first."""
    address, org = Pubkey.from_string(_stored(world, made).address), await world.fields(world.org)
    addresses = [world.service.addresses.allowlist(address, version) for version in range(org["sequence"] + 1)]
    found: list[Pubkey] = []
    for start in range(0, len(addresses), 100):
        part = addresses[start : start + 100]
        accounts = await world.service.chain.accounts(part)
        found += [one for one, account in zip(part, accounts, strict=True) if account is not None]
    return found


async def _in_force(world: ServiceWorld, made: Json) -> Pubkey:
    """Return the address of the policy's allowlist in force."""
    fields = await world.fields(_stored(world, made).address)
    allowlist: Pubkey = fields["allowlist"]
    return allowlist


async def _sent(world: ServiceWorld, method: str, path: str, body: Any) -> tuple[Json, int]:
    """Return the answer and how many transactions it took."""
    before = world.line.methods.count("sendTransaction")
    answer = await world.ok(method, path, body)
    return answer, world.line.methods.count("sendTransaction") - before


async def _cut_off(world: ServiceWorld, made: Json, body: Json, after: int = 0, **options: Any) -> Json:
    """Interrupt a change after this many transactions: the next one does not reach the chain."""
    sent = 0

    def lost(method: str) -> bool:
        nonlocal sent
        sent += method == "sendTransaction"
        return method == "sendTransaction" and sent > after

    world.line.lose_requests = lost
    error = error_of(await world.call("PATCH", _path(made), body, **options), 503, "chain_unavailable")
    world.line.mend()
    return error


@pytest.mark.proves(
    "PATCH /v1/policies/{policy_id}",
    "UpdatePolicy(name, maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients)",
    "UpdatePolicy(blockedCategories, requireCoSign, expiry)",
    "Policy(name, version)",
)
async def test_every_field_changes_and_the_others_stay(world: ServiceWorld) -> None:
    friend, other = _addresses(2)
    made = await world.ok("POST", "/v1/policies", {"name": "First", "maxPerTx": "5", "allowedRecipients": [friend]})
    fields = {
        "name": "Second",
        "maxPerTx": "6",
        "maxPerDay": "60",
        "maxPerMonth": "600",
        "velocityCap": 7,
        "allowedRecipients": [friend, other],
        "blockedCategories": ["nft"],
        "requireCoSign": "4",
        "expiry": "2031-01-01T00:00:00Z",
    }
    shown = {
        "name": "Second",
        "max_per_tx": "6.00",
        "max_per_day": "60.00",
        "max_per_month": "600.00",
        "velocity_cap": 7,
        "allowed_recipients": [friend, other],
        "blocked_categories": ["nft"],
        "require_co_sign": "4.00",
        "expiry": "2031-01-01T00:00:00Z",
    }
    expected = made
    for (field, value), name in zip(fields.items(), shown, strict=True):
        answer = await world.ok("PATCH", _path(made), {field: value})

        assert (answer["version"] > expected["version"]) == (field != "name")
        expected = {**expected, name: shown[name], "version": answer["version"]}
        assert answer == expected == await world.ok("GET", _path(made)), field


@pytest.mark.proves(
    "UpdatePolicy(name, maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients)",
    "UpdatePolicy(blockedCategories, requireCoSign, expiry)",
)
async def test_null_and_the_empty_list_clear_and_an_empty_body_changes_nothing(world: ServiceWorld) -> None:
    [friend] = _addresses(1)
    rules = {"maxPerTx": "5", "maxPerDay": "6", "velocityCap": 7, "expiry": "2031-01-01T00:00:00Z"}
    made = await world.policy(**rules, allowedRecipients=[friend], blockedCategories=["nft"], requireCoSign="1")

    assert await world.ok("PATCH", _path(made), {}) == made
    change: Json = {
        "max_per_tx": None,
        "velocityCap": None,
        "allowedRecipients": [],
        "blockedCategories": [],
        "expiry": None,
    }
    cleared = await world.ok("PATCH", _path(made), change)

    assert (cleared["max_per_tx"], cleared["velocity_cap"], cleared["expiry"]) == (None, None, None)
    assert (cleared["allowed_recipients"], cleared["blocked_categories"]) == ([], [])
    assert (cleared["max_per_day"], cleared["require_co_sign"]) == ("6.00", "1.00")
    assert await _lists(world, made) == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": None}, "invalid_request"),
        ({"name": ""}, "invalid_request"),
        ({"allowedRecipients": None}, "invalid_request"),
        ({"allowedRecipients": ["no such thing"]}, "invalid_recipient"),
        ({"blockedCategories": ["fishing"]}, "invalid_request"),
        ({"maxPerTx": "-1"}, "invalid_amount"),
        ({"policyId": "pol_other"}, "invalid_request"),
    ],
)
async def test_invalid_change_is_refused_as_a_whole(world: ServiceWorld, body: Json, code: str) -> None:
    made = await world.policy(maxPerTx="5")

    error_of(await world.call("PATCH", _path(made), {"maxPerDay": "1", **body}), 400, code)

    assert await world.ok("GET", _path(made)) == made


@pytest.mark.proves("PATCH /v1/policies/{policy_id}", "Limits: Change of a policy or a wallet's policy")
async def test_change_binds_every_attached_wallet_with_one_transaction(world: ServiceWorld) -> None:
    made, to = await world.policy(maxPerTx="5"), await world.payee()
    wallets = [await world.wallet(made["policy_id"]) for _ in range(2)]
    for wallet in wallets:
        assert (await world.pay(wallet, to, "5")).json()["status"] == "confirmed"

    _, sent = await _sent(world, "PATCH", _path(made), {"maxPerTx": "1", "allowedRecipients": [to], "maxPerDay": "9"})

    assert sent == 1
    for wallet in wallets:
        refused = error_of(await world.pay(wallet, to, "2"), 402, "policy_violation")
        assert refused["violation"] == {"rule": "max_per_tx", "limit": "1.00", "attempted": "2.00"}
        elsewhere = error_of(await world.pay(wallet, await world.payee(), "1"), 402, "policy_violation")
        assert elsewhere["violation"]["rule"] == "allowed_recipients"
        assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"
        assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["policy"]["max_per_tx"] == "1.00"


async def test_long_allowlist_takes_effect_as_a_whole(own_world: ServiceWorld) -> None:
    world = own_world
    old, new = await world.payee(), await world.payee()
    made = await world.policy(allowedRecipients=[old])
    wallet = await world.wallet(made["policy_id"])
    recipients = [new, *_addresses(LONG)]

    # Given a change that was interrupted after most of the new list was written
    await _cut_off(world, made, {"allowedRecipients": recipients}, after=2, headers={"Idempotency-Key": "long"})
    in_force = await _in_force(world, made)
    first, draft = await _lists(world, made)
    assert first == in_force
    assert (await world.ok("GET", _path(made)))["allowed_recipients"] == [old]
    assert (await world.pay(wallet, old, "1")).json()["status"] == "confirmed"
    error_of(await world.pay(wallet, new, "1"), 402, "policy_violation")

    # When the request is repeated under its key
    repeated = await world.ok(
        "PATCH", _path(made), {"allowedRecipients": recipients}, headers={"Idempotency-Key": "long"}
    )

    # Then the whole list is in force, and nothing is left of the old one
    assert sorted(repeated["allowed_recipients"]) == sorted(recipients)
    assert await _lists(world, made) == [draft] == [await _in_force(world, made)]
    assert (await world.pay(wallet, new, "1")).json()["status"] == "confirmed"
    error_of(await world.pay(wallet, old, "1"), 402, "policy_violation")


async def test_draft_that_was_given_up_becomes_the_next_list(own_world: ServiceWorld) -> None:
    world = own_world
    friends = _addresses(2)
    made = await world.policy(allowedRecipients=friends[:1])
    given_up = _addresses(LONG)
    await _cut_off(world, made, {"allowedRecipients": given_up}, after=1)
    another = {"allowedRecipients": friends}
    error_of(await world.call("PATCH", _path(made), another), 503, "chain_unavailable")
    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "3"}))["max_per_tx"] == "3.00"
    world.clock.ahead += EXPIRY_SECONDS

    changed = await world.ok("PATCH", _path(made), another)

    assert changed["allowed_recipients"] == friends
    assert await _lists(world, made) == [await _in_force(world, made)]
    await world.service.part(Recovery).recover()
    await world.catch_up()
    assert (await world.ok("GET", _path(made)))["allowed_recipients"] == friends
    assert world.service.db.read_now(pending_attempts) == []


async def test_lamports_at_the_address_of_the_next_list_stop_no_change(world: ServiceWorld) -> None:
    made, friends = await world.policy(allowedRecipients=_addresses(1)), _addresses(LONG)
    policy = Pubkey.from_string(_stored(world, made).address)
    for changed in ({"allowedRecipients": friends}, {"allowedRecipients": friends[:2]}, None):
        account = await world.service.chain.account(policy)
        assert account is not None
        version = account.decode(world.service.codec).data["next_allowlist_version"]
        await world.localnet.airdrop(world.service.addresses.allowlist(policy, version), 10**7)

        if changed is not None:
            answer = await world.ok("PATCH", _path(made), changed)
            assert answer["allowed_recipients"] == changed["allowedRecipients"]
        else:
            await world.ok("DELETE", _path(made))


async def test_equal_list_in_another_order_changes_nothing(world: ServiceWorld) -> None:
    friends = _addresses(3)
    made = await world.policy(allowedRecipients=friends)

    answer, sent = await _sent(world, "PATCH", _path(made), {"allowedRecipients": friends[::-1]})

    assert (answer, sent) == (made, 0)


@pytest.mark.proves("error policy_immutable")
async def test_preset_is_immutable(world: ServiceWorld) -> None:
    path = "/v1/policies/pol_moderate"

    for body in ({"maxPerTx": "1"}, {"name": "Mine"}):
        error_of(await world.call("PATCH", path, body), 422, "policy_immutable")
    error_of(await world.call("DELETE", path), 422, "policy_immutable")

    assert (await world.ok("GET", path))["name"] == "Moderate"


@pytest.mark.proves("DELETE /v1/policies/{policy_id}", "error policy_in_use")
async def test_policy_in_use_is_deleted_only_when_its_wallets_have_left(world: ServiceWorld) -> None:
    made = await world.policy(maxPerTx="5", allowedRecipients=_addresses(2))
    wallet = await world.wallet(made["policy_id"], funds=None)
    error_of(await world.call("DELETE", _path(made)), 422, "policy_in_use")
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"policyId": "pol_moderate"})
    key = {"Idempotency-Key": f"delete {made['policy_id']}"}

    deleted = await world.ok("DELETE", _path(made), headers=key)

    assert deleted == made
    assert await world.ok("DELETE", _path(made), headers=key) == deleted
    assert await world.accounts(_stored(world, made).address) == [None]
    assert await _lists(world, made) == []
    listed = (await world.ok("GET", "/v1/policies"))["data"]
    assert made["policy_id"] not in [one["policy_id"] for one in listed]
    for method in ("GET", "PATCH", "DELETE"):
        error_of(await world.call(method, _path(made), None if method == "GET" else {}), 404, "policy_not_found")
    error_of(await world.call("POST", f"{_path(made)}/clone", {"name": "Ghost"}), 404, "policy_not_found")


async def test_deletion_gives_back_what_a_draft_costs(own_world: ServiceWorld) -> None:
    world = own_world
    payer = world.service.signers.fee_payer_address
    for rules in ({}, {"allowedRecipients": _addresses(1)}):
        made = await world.policy(**rules)
        await _cut_off(world, made, {"allowedRecipients": _addresses(LONG)}, after=2)
        world.clock.ahead += EXPIRY_SECONDS
        addresses = [Pubkey.from_string(_stored(world, made).address), *await _lists(world, made)]
        held = [account for account in await world.service.chain.accounts(addresses) if account]
        assert len(held) == 2 + len(rules)
        before = await world.service.chain.account(payer)

        await world.ok("DELETE", _path(made))

        after = await world.service.chain.account(payer)
        assert before is not None
        assert after is not None
        fees = 2 * 5_000
        assert after.lamports - before.lamports == sum(account.lamports for account in held) - fees
        assert await _lists(world, made) == []


async def test_lost_answer_of_a_deletion_is_given_under_its_key(own_world: ServiceWorld) -> None:
    world = own_world
    made, key = await world.policy(maxPerTx="5"), {"Idempotency-Key": "gone"}
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.call("DELETE", _path(made), headers=key), 503, "chain_unavailable")
    world.line.mend()
    await world.restart()

    assert await world.ok("DELETE", _path(made), headers=key) == made


@pytest.mark.proves("POST /v1/policies/{policy_id}/clone", "ClonePolicy(name)")
async def test_clone_of_a_preset_can_be_changed(world: ServiceWorld) -> None:
    preset = await world.ok("GET", "/v1/policies/pol_conservative")

    made = await world.ok("POST", "/v1/policies/pol_conservative/clone", {"name": "Mine", "maxPerDay": None})

    own = {"policy_id", "id", "name", "created_at", "max_per_day", "wallet_count", "version"}
    assert {k: v for k, v in made.items() if k not in own} == {k: v for k, v in preset.items() if k not in own}
    assert (made["name"], made["max_per_day"], made["wallet_count"]) == ("Mine", None, 0)
    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "1"}))["max_per_tx"] == "1.00"


@pytest.mark.proves(
    "POST /v1/policies/{policy_id}/clone",
    "ClonePolicy(maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients, blockedCategories)",
    "ClonePolicy(requireCoSign, expiry)",
)
@pytest.mark.parametrize("count", [2, LONG])
async def test_clone_copies_the_allowlist_and_takes_overrides(world: ServiceWorld, count: int) -> None:
    friends = [*_addresses(count), "api.example.com"]
    source = await world.policy(maxPerTx="5", allowedRecipients=friends, blockedCategories=["nft"])
    body = {"name": "Copy", "max_per_tx": "6", "blockedCategories": [], "idempotencyKey": f"copy {count}"}

    made = await world.ok("POST", f"{_path(source)}/clone", body)

    assert sorted(made["allowed_recipients"]) == sorted(friends)
    assert (made["max_per_tx"], made["blocked_categories"]) == ("6.00", [])
    assert await world.ok("POST", f"{_path(source)}/clone", body) == made
    opened = await world.ok("POST", f"{_path(source)}/clone", {"name": "Open", "allowedRecipients": []})
    assert (opened["allowed_recipients"], opened["max_per_tx"]) == ([], "5.00")
    assert await world.ok("GET", _path(source)) == source
    error_of(await world.call("POST", f"{_path(source)}/clone", {"maxPerTx": "1"}), 400, "invalid_request")


@pytest.mark.proves("error version_conflict")
async def test_editor_of_an_outdated_version_is_refused(world: ServiceWorld) -> None:
    made = await world.policy(maxPerTx="5")
    tag = (await world.call("GET", _path(made))).headers["etag"]
    first = await world.call("PATCH", _path(made), {"maxPerTx": "6"}, headers={"If-Match": tag})
    assert first.status_code == 200
    version = first.json()["version"]

    for change in ({"maxPerTx": "7"}, {"name": "Late"}, {}):
        refused = await world.call("PATCH", _path(made), change, headers={"If-Match": tag})
        assert error_of(refused, 409, "version_conflict")["version"] == version
    error_of(await world.call("DELETE", _path(made), headers={"If-Match": tag}), 409, "version_conflict")

    assert (await world.ok("GET", _path(made)))["max_per_tx"] == "6.00"
    tag = first.headers["etag"]
    for match in (f'"other", {tag}', f'"{version}"', "*"):
        renamed = await world.call("PATCH", _path(made), {"name": f"Name {match}"}, headers={"If-Match": match})
        assert renamed.status_code == 200
        tag = renamed.headers["etag"]
    stale = {"If-Match": first.headers["etag"]}
    error_of(await world.call("PATCH", _path(made), {"name": "Late"}, headers=stale), 409, "version_conflict")
    for malformed in ("2", 'W/"2"', '""'):
        refused = await world.call("PATCH", _path(made), {"name": "Odd"}, headers={"If-Match": malformed})
        error_of(refused, 400, "invalid_request")
    assert (await world.call("DELETE", _path(made), headers={"If-Match": tag})).status_code == 200


@pytest.mark.parametrize("change", [{"name": "After"}, {"name": "After", "maxPerTx": "5"}])
async def test_rename_whose_answer_got_lost_does_not_conflict_with_itself(world: ServiceWorld, change: Json) -> None:
    # Given a rename with If-Match, and a process that died before it stored the answer
    made = await world.policy(maxPerTx="5")
    headers = {"If-Match": (await world.call("GET", _path(made))).headers["etag"], "Idempotency-Key": made["policy_id"]}
    first = await world.call("PATCH", _path(made), change, headers=headers)
    assert first.status_code == 200

    def lose_answer(connection: Connection) -> None:
        mine = update(idempotency).where(idempotency.c.key == made["policy_id"])
        connection.execute(mine.values(state="running", response=None, status_code=None))

    await world.service.db.write(lose_answer)
    # And a later change by somebody else
    await world.ok("PATCH", _path(made), {"maxPerTx": "7"})

    # When the request is repeated
    again = await world.call("PATCH", _path(made), change, headers=headers)

    # Then the answer is the current policy, and nothing is undone
    assert (again.status_code, again.json()["name"], again.json()["max_per_tx"]) == (200, "After", "7.00")
    entries = (await world.ok("GET", f"{_path(made)}/audit-log"))["data"]
    assert [list(entry["changes"]) for entry in entries] == [["name"], ["max_per_tx"]]
    # And a new request with the old version is refused
    stale = {"If-Match": headers["If-Match"]}
    error_of(await world.call("PATCH", _path(made), change, headers=stale), 409, "version_conflict")


async def test_changes_of_different_fields_at_once_all_take_effect(world: ServiceWorld) -> None:
    made = await world.policy()
    bodies: list[Json] = [{"maxPerTx": "1"}, {"maxPerDay": "2"}, {"maxPerMonth": "3"}, {"velocityCap": 4}]

    answers = await asyncio.gather(*(world.call("PATCH", _path(made), body) for body in bodies))

    assert [answer.status_code for answer in answers] == [200] * 4
    found = await world.ok("GET", _path(made))
    assert [found[name] for name in ("max_per_tx", "max_per_day", "max_per_month")] == ["1.00", "2.00", "3.00"]
    assert found["velocity_cap"] == 4
    assert found["version"] == max(answer.json()["version"] for answer in answers)


async def _change_past(world: ServiceWorld, made: Json, rules: Rules) -> None:
    found, authority = _stored(world, made), world.service.signers.require_authority()
    change = world.build.update_policy(
        authority=authority.pubkey(),
        policy=Pubkey.from_string(found.address),
        expected_version=made["version"],
        rules=rules,
    )
    assert (await world.land([change], authority)).err is None


async def test_list_written_without_the_service_is_shown_and_kept(own_world: ServiceWorld) -> None:
    world = own_world
    made, authority = await world.policy(maxPerTx="5"), world.service.signers.require_authority()
    address = Pubkey.from_string(_stored(world, made).address)
    build, account = world.build, await world.fields(address)
    version: int = account["next_allowlist_version"]
    listed = world.service.addresses.allowlist(address, version)
    friend, domain, unknown = Keypair().pubkey(), "shop.example", domain_hash("unknown.example")
    await world.ok("PUT", f"/v1/recipients/{domain}", {"address": str(friend)})
    entries = sorted([bytes(friend), domain_hash(domain), unknown])
    write = build.write_allowlist(
        payer=world.service.signers.fee_payer_address,
        writer=authority.pubkey(),
        policy=address,
        version=version,
        offset=0,
        entries=entries,
        seal=True,
    )
    switch = build.update_policy(
        authority=authority.pubkey(),
        policy=address,
        expected_version=account["version"],
        entries=entries,
        rules=Rules(max_per_tx=5_000_000, restricted=True),
        new_allowlist=listed,
    )
    assert (await world.land([write, switch], authority)).err is None
    await world.catch_up()
    texts = {str(friend), domain, str(Pubkey.from_bytes(unknown))}

    assert set((await world.ok("GET", _path(made)))["allowed_recipients"]) == texts
    assert set((await world.ok("PATCH", _path(made), {"maxPerTx": "1"}))["allowed_recipients"]) == texts
    clone = await world.ok("POST", f"{_path(made)}/clone", {"name": "Clone"})
    copied = await world.fields(await _in_force(world, clone))
    assert set(copied["entries"]) == {bytes(friend), domain_hash(domain), unknown}


async def test_change_that_loses_a_race_is_made_anew_from_the_current_terms(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="5")
    raced = False

    async def race() -> None:
        nonlocal raced
        raced = True
        world.line.hold = lambda _method: None
        await _change_past(world, made, Rules(max_per_tx=5_000_000, max_per_day=9_000_000))

    world.line.hold = lambda method: race() if method == "sendTransaction" else None

    changed = await world.ok("PATCH", _path(made), {"velocityCap": 3})

    assert raced
    assert (changed["max_per_day"], changed["velocity_cap"]) == ("9.00", 3)
    assert changed["version"] == made["version"] + 2


async def test_change_with_a_version_is_refused_when_it_loses_a_race(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="5")

    async def race() -> None:
        world.line.hold = lambda _method: None
        await _change_past(world, made, Rules(max_per_tx=1))

    world.line.hold = lambda method: race() if method == "sendTransaction" else None

    answer = await world.call("PATCH", _path(made), {"velocityCap": 3}, headers={"If-Match": f'"{made["version"]}"'})

    assert error_of(answer, 409, "version_conflict")["version"] == made["version"] + 1
    assert (await world.ok("GET", _path(made)))["velocity_cap"] is None


async def test_lost_change_does_not_undo_a_newer_one(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="5")
    await _cut_off(world, made, {"maxPerTx": "1000"})

    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "1"}))["max_per_tx"] == "1.00"

    for _ in range(2):
        await world.service.part(Recovery).recover()
        await world.catch_up()
        world.clock.ahead += EXPIRY_SECONDS
    found = await world.ok("GET", _path(made))
    assert (found["max_per_tx"], found["version"]) == ("1.00", made["version"] + 1)
    assert world.service.db.read_now(pending_attempts) == []


async def test_change_whose_answer_got_lost_is_made_once(own_world: ServiceWorld) -> None:
    world = own_world
    made, key = await world.policy(maxPerTx="5"), {"Idempotency-Key": "once"}
    body = {"maxPerTx": "6", "name": "Renamed"}
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.call("PATCH", _path(made), body, headers=key), 503, "chain_unavailable")
    world.line.mend()
    await world.restart()

    changed = await world.ok("PATCH", _path(made), body, headers=key)

    version = made["version"] + 1
    assert (changed["max_per_tx"], changed["name"], changed["version"]) == ("6.00", "Renamed", version)
    replayed = await world.call("PATCH", _path(made), body, headers=key)
    assert (replayed.json(), replayed.headers["idempotent-replayed"]) == (changed, "true")
    assert replayed.headers["etag"].startswith(f'"{version}-')


async def test_key_of_another_change_is_refused_even_if_both_clear_a_rule(world: ServiceWorld) -> None:
    made = await world.policy(maxPerTx="5", maxPerDay="6")
    key = {"Idempotency-Key": f"clear {made['policy_id']}"}
    await world.ok("PATCH", _path(made), {"maxPerTx": None}, headers=key)

    for other in ({"maxPerDay": None}, {}, {"maxPerTx": None, "maxPerDay": None}):
        error_of(await world.call("PATCH", _path(made), other, headers=key), 409, "idempotency_conflict")

    assert (await world.ok("GET", _path(made)))["max_per_day"] == "6.00"


@pytest.mark.proves("event policy.updated")
async def test_changes_are_reported_with_what_they_changed(world: ServiceWorld) -> None:
    made = await world.policy(maxPerTx="5")
    await world.ok("PATCH", _path(made), {"name": "New", "maxPerTx": None})

    events = (await world.ok("GET", "/v1/events"))["data"]

    mine = [one for one in events if one["event"] == "policy.updated" and one["policy_id"] == made["policy_id"]]
    assert [one["changes"] for one in mine] == [
        {"name": {"from": made["name"], "to": "New"}},
        {"max_per_tx": {"from": "5.00", "to": None}},
    ]


@pytest.mark.proves("role admin")
@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_only_admins_write_policies(world: ServiceWorld, role: Any) -> None:
    made, key = await world.policy(), world.key(role)

    for method, path, body in (
        ("PATCH", _path(made), {"maxPerTx": "1"}),
        ("DELETE", _path(made), {}),
        ("POST", f"{_path(made)}/clone", {"name": "Mine"}),
    ):
        error_of(await world.call(method, path, body, key=key), 403, "insufficient_permissions")


async def test_other_organisation_neither_changes_nor_clones(world: ServiceWorld) -> None:
    made = await world.policy()
    theirs = world.key("admin", org=await world.organisation("changes-neighbour"))

    for method, path, body in (
        ("PATCH", _path(made), {"maxPerTx": "1"}),
        ("DELETE", _path(made), {}),
        ("POST", f"{_path(made)}/clone", {"name": "Mine"}),
        ("GET", f"{_path(made)}/audit-log", None),
    ):
        error_of(await world.call(method, path, body, key=theirs), 404, "policy_not_found")


async def test_without_the_authority_key_only_names_change(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        made = await world.policy(maxPerTx="5")
        (tmp_path / "keys" / "authority.json").unlink()
        await world.restart()

        for method, path, body in (
            ("PATCH", _path(made), {"maxPerTx": "1"}),
            ("DELETE", _path(made), {}),
            ("POST", f"{_path(made)}/clone", {"name": "Mine"}),
        ):
            error_of(await world.call(method, path, body), 503, "authority_offline")
        assert (await world.ok("PATCH", _path(made), {"name": "Renamed"}))["name"] == "Renamed"


async def test_limit_that_is_taken_back_is_not_raised_by_the_earlier_request(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="10")
    lost = await _cut_off(world, made, {"maxPerTx": "1000"})

    refused = error_of(await world.call("PATCH", _path(made), {"maxPerTx": "10"}), 503, "chain_unavailable")

    assert refused["tx_id"] == lost["tx_id"]
    await world.service.part(Recovery).recover()
    await world.catch_up()
    assert (await world.ok("GET", _path(made)))["max_per_tx"] == "1000.00"
    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "10"}))["max_per_tx"] == "10.00"


async def test_limit_that_landed_unseen_is_taken_back(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(maxPerTx="10")
    world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.call("PATCH", _path(made), {"maxPerTx": "1000"}), 503, "chain_unavailable")
    world.line.mend()

    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "10"}))["max_per_tx"] == "10.00"


async def test_limit_that_lands_while_it_is_taken_back_is_taken_back(own_world: ServiceWorld) -> None:
    world, service = own_world, own_world.service
    made = await world.policy(maxPerTx="10")
    lost = (await _cut_off(world, made, {"maxPerTx": "1000"}))["tx_id"]
    earlier = service.db.read_now(lambda conn: attempt(conn, lost))
    assert earlier is not None
    signature = str(earlier.signature)

    async def land() -> None:
        world.line.hold = lambda _method: None
        await service.submitter.resend(earlier)
        assert await service.chain.confirm(signature, timeout=5)

    world.line.hold = lambda method: land() if method == "getEpochInfo" else None
    assert (await world.ok("PATCH", _path(made), {"maxPerTx": "10"}))["max_per_tx"] == "10.00"
    assert (await world.ok("GET", _path(made)))["version"] == made["version"] + 2
