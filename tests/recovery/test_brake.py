"""Brakes over lost answers, restarts and a database that cannot be written."""

import asyncio
import base64
import json
import sqlite3
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import delete

from app.access.keyring import system
from app.core.paths import Paths
from app.core.signers import write_secret
from app.store.attempts import Attempt, attempt, pending_attempts
from app.store.brakes import all_brakes
from app.store.read_tables import wallets
from app.submission.claim import Claim
from app.submission.locks import LockScope
from app.submission.plan import Plan
from app.submission.recovery import Recovery
from tests.support.http import PATIENCE
from tests.support.lies import LIES
from tests.support.sends import Sends
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.sqlite import sqlite_writer

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a blockhash lives (150 slots of 0.4 s) and its last block takes to finalize (32 slots).
EXPIRY_SECONDS = 90.0


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}"


def _attempt(world: ServiceWorld, tx_id: str) -> Attempt:
    found = world.service.db.read_now(lambda conn: attempt(conn, tx_id))
    assert found is not None
    return found


async def _frozen(world: ServiceWorld, wallet: Json) -> int:
    account = await world.service.chain.account(Pubkey.from_string(wallet["chain_address"]))
    assert account is not None
    return int(world.service.codec.decode_account(account.data).data["frozen"])


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2 * PATIENCE):
        while not condition():  # noqa: ASYNC110 - work in the background has no signal
            await asyncio.sleep(0.05)


async def _lost(world: ServiceWorld, wallet: Json, to: str, **options: Any) -> str:
    """Make a payment whose transaction does not reach the chain; returns its id."""
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error = error_of(await world.pay(wallet, to, "1", **options), 503, "chain_unavailable")
    world.line.mend()
    return str(error["tx_id"])


def _brake_after_storing(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, wallet: Json) -> None:
    """Engage a freeze's brake once, between storing and sending the next transaction."""
    submitter = world.service.submitter
    store = submitter._store

    async def store_and_brake(plan: Plan, stored: Attempt, claim: Claim, *, charged: bool = False) -> None:
        await store(plan, stored, claim, charged=charged)
        monkeypatch.undo()
        brake = world.service.brake
        brake.leave(brake.engage(system(world.org, "test"), wallet["wallet_id"], "freeze"))

    monkeypatch.setattr(submitter, "_store", store_and_brake)


@pytest.mark.proves("Transactions: pending to failed", "Limits: Freeze or pause")
async def test_payment_stored_and_never_sent_failed_and_its_key_is_free(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, key = own_world, {"Idempotency-Key": "overtaken"}
    wallet, to = await world.wallet(), await world.payee()
    sends = Sends(world)
    _brake_after_storing(world, monkeypatch, wallet)

    error_of(await world.pay(wallet, to, "1", headers=key), 422, "wallet_frozen")

    [row] = (await world.ok("GET", f"{_path(wallet)}/transactions?type=payment"))["data"]
    assert (row["status"], _attempt(world, row["tx_id"]).error) == ("failed", "wallet_frozen")
    assert not sends.payments()
    # The brake goes on alone: it freezes the wallet, then it is released.
    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1
    await world.restart()
    await world.service.part(Recovery).recover()
    assert await world.balance(to) == 0
    await world.ok("PATCH", _path(wallet), {"status": "active"})
    assert (await world.pay(wallet, to, "1", headers=key)).json()["status"] == "confirmed"
    assert await world.balance(to) == 1_000_000


@pytest.mark.proves("Transactions: pending to failed")
async def test_overtaken_payment_is_not_sent_again_over_restart_and_unfreeze(own_world: ServiceWorld) -> None:
    world, key = own_world, {"Idempotency-Key": "late"}
    wallet, to = await world.wallet(), await world.payee()
    tx_id = await _lost(world, wallet, to, headers=key)
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    await world.restart(confirm_timeout=0.5)
    await world.ok("PATCH", _path(wallet), {"status": "active"})
    sends = Sends(world)

    await world.service.part(Recovery).recover()
    again = (await world.pay(wallet, to, "1", headers=key)).json()

    assert (again["tx_id"], again["status"]) == (tx_id, "pending")
    assert sends.raw == []
    world.clock.ahead += EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    found = _attempt(world, tx_id)
    assert (found.status, found.error) == ("failed", "wallet_frozen")
    assert await world.balance(to) == 0


async def test_brake_holds_over_a_restart_until_the_chain_is_frozen(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    lost = await _lost(world, wallet, to)
    world.line.lose_requests = lambda _method: True
    error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")
    assert "already blocks the affected payments" in error["message"]

    await world.restart(lose_requests=lambda method: method in {"getMultipleAccounts", "getSignatureStatuses"})

    sends = Sends(world)
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    error_of(await world.call("PATCH", _path(wallet), {"status": "active"}), 503, "chain_unavailable")
    assert sends.raw == []
    world.line.mend()
    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1
    await world.service.part(Recovery).recover()
    assert not sends.payments()
    assert _attempt(world, lost).status == "pending"


async def test_freeze_is_repeated_after_an_earlier_unfreeze_has_landed(own_world: ServiceWorld) -> None:
    # Given a frozen wallet, and an unfreeze that is on its way
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    sends = Sends(world)
    through, late = world.line.through, list[bytes]()

    async def delay(body: bytes) -> bytes:
        request = json.loads(body)
        if isinstance(request, dict) and request["method"] == "sendTransaction" and not late:
            late.append(body)
            return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "x"}).encode()
        return await through(body)

    world.line.through = delay
    unfreeze = asyncio.create_task(world.call("PATCH", _path(wallet), {"status": "active"}))
    await _until(lambda: bool(late))

    # When a freeze is asked for, and then the unfreeze lands
    world.line.methods.clear()
    freeze = asyncio.create_task(world.call("PATCH", _path(wallet), {"status": "frozen"}))
    # It has looked for the unfreeze, which has neither landed nor expired, and does so again.
    await _until(lambda: world.line.methods.count("getEpochInfo") > 1)
    assert not freeze.done()
    before = len(sends.raw)
    await through(late[0])
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")

    # Then the wallet is frozen again, and only then the freeze is answered
    assert (await freeze).json()["status"] == "frozen"
    assert (await unfreeze).status_code == 200
    assert len(sends.raw) >= before + 2
    assert await _frozen(world, wallet) == 1
    assert world.service.brake.without_request() == []


async def test_freeze_that_gave_up_on_an_unfreeze_is_repeated_by_itself(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.5)
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    raw: list[bytes] = []
    world.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await world.call("PATCH", _path(wallet), {"status": "active"}), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    raw.append(_attempt(world, lost).raw or b"")
    error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")
    assert error["tx_id"] == lost

    # Another node delivers the unfreeze.
    await world.service.chain.call("sendTransaction", [base64.b64encode(raw[0]).decode(), {"encoding": "base64"}])

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1
    assert (await world.ok("PATCH", _path(wallet), {"status": "frozen"}))["status"] == "frozen"


@pytest.mark.proves("Limits: Freeze or pause")
async def test_freeze_lands_while_the_database_cannot_be_written(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    writer: Any = sqlite_writer(world.service.db)
    writer.execute("PRAGMA query_only=ON")

    error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "storage_unavailable")

    assert "is confirmed there" in error["message"]
    assert await _frozen(world, wallet) == 1
    assert error["tx_signature"] in await world.signatures(wallet["chain_address"])
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    writer.execute("PRAGMA query_only=OFF")
    await world.catch_up()
    assert (await world.ok("GET", _path(wallet)))["status"] == "frozen"
    await _until(lambda: not world.service.brake.without_request())
    await world.ok("PATCH", _path(wallet), {"status": "active"})
    assert (await world.pay(wallet, to, "1")).status_code == 200
    assert world.service.db.read_now(pending_attempts) == []


async def test_freeze_lands_while_another_process_writes(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    outside = sqlite3.connect(Paths(world.settings.data_dir).database, isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    gaps = list[float]()
    ticking = asyncio.create_task(_ticks(gaps))

    error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "storage_unavailable")

    ticking.cancel()
    assert max(gaps) < PATIENCE / 2
    assert "is confirmed there" in error["message"]
    assert await _frozen(world, wallet) == 1
    outside.rollback()
    outside.close()
    await _until(lambda: not world.service.brake.without_request())
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


async def test_freeze_lands_while_a_rebuild_holds_the_database(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    async with world.service.db.transaction() as step:
        await step(lambda conn: conn.execute(delete(wallets)))

        error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "storage_unavailable")

        assert "is confirmed there" in error["message"]
        assert await _frozen(world, wallet) == 1
        error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
        await step(lambda conn: conn.rollback())
    await _until(lambda: not world.service.brake.without_request())
    await world.catch_up()
    assert (await world.ok("GET", _path(wallet)))["status"] == "frozen"


async def _ticks(gaps: list[float]) -> None:
    """Measure for how many seconds at a time the event loop does nothing else."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        last, gap = time.monotonic(), time.monotonic() - last
        gaps.append(gap)


async def test_freeze_of_a_full_disk_does_not_pay_what_waits(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    lost = await _lost(world, wallet, to)
    writer: Any = sqlite_writer(world.service.db)
    [pages] = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages}")
    blobs = 0
    while blobs < 10_000:
        blobs += 1
        response = await world.call("POST", "/v1/policies", {"name": "x" * 100})
        if response.status_code != 200:
            break

    frozen = await world.call("PATCH", _path(wallet), {"status": "frozen"})

    assert frozen.status_code in {200, 503}
    assert await _frozen(world, wallet) == 1
    await world.service.part(Recovery).recover()
    writer.execute("PRAGMA max_page_count=1073741823")
    await _until(lambda: not world.service.brake.without_request())
    await world.service.part(Recovery).recover()
    assert _attempt(world, lost).status == "pending"
    assert await world.balance(to) == 0


@pytest.mark.proves("POST /v1/organization/pause")
async def test_pause_is_repeated_after_an_earlier_unpause_has_landed(own_world: ServiceWorld) -> None:
    world, path = own_world, "/v1/organization/pause"
    patience = world.settings.confirm_timeout
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("POST", path, {"paused": True})
    await world.restart(confirm_timeout=0.5)
    world.line.lose_requests = lambda method: method == "sendTransaction"
    lost = error_of(await world.call("POST", path, {"paused": False}), 503, "chain_unavailable")["tx_id"]
    world.line.mend()
    error = error_of(await world.call("POST", path, {"paused": True}), 503, "chain_unavailable")
    assert error["tx_id"] == lost
    raw = _attempt(world, lost).raw or b""

    await world.service.chain.call("sendTransaction", [base64.b64encode(raw).decode(), {"encoding": "base64"}])

    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")
    await _until(lambda: not world.service.brake.without_request())
    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")
    await world.restart(confirm_timeout=patience)
    await world.ok("POST", path, {"paused": False})
    assert (await world.pay(wallet, to, "1")).status_code == 200


@pytest.mark.proves("PATCH /v1/wallets/{wallet_id}")
async def test_freeze_with_a_new_policy_stops_payments_before_its_turn(own_world: ServiceWorld) -> None:
    # Given a wallet of which another change is being made
    world = own_world
    wallet, to, policy = await world.wallet(), await world.payee(), await world.policy(maxPerTx="5")
    change = {"status": "frozen", "policyId": policy["policy_id"]}
    freezing = asyncio.create_task(_held_up(world, wallet, change), context=Context())
    await _until(lambda: world.service.brake.is_engaged(wallet["wallet_id"], "freeze"))

    # Then no payment is sent any more, and both changes are made in one transaction
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    assert await _frozen(world, wallet) == 0
    before = await world.signatures(wallet["chain_address"])
    changed = await freezing
    assert (changed["status"], changed["policy"]["policy_id"]) == ("frozen", policy["policy_id"])
    assert len(await world.signatures(wallet["chain_address"])) == len(before) + 1
    assert not world.service.brake.is_engaged(wallet["wallet_id"], "freeze")
    await world.ok("PATCH", _path(wallet), {"status": "active"})
    assert (await world.pay(wallet, to, "1")).status_code == 200


async def _held_up(world: ServiceWorld, wallet: Json, change: Json) -> Json:
    """Make a change of a wallet that must wait for another, which ends once a payment was refused."""
    refused = list[int]()
    pay = world.pay

    async def watched(*arguments: Any, **options: Any) -> Any:
        answer = await pay(*arguments, **options)
        refused.append(answer.status_code)
        return answer

    world.pay = watched  # type: ignore[method-assign]
    task = asyncio.create_task(world.ok("PATCH", _path(wallet), change), context=Context())
    async with world.service.locks.hold(LockScope.WALLET_STATE, wallet["wallet_id"]):
        await _until(lambda: bool(refused))
    return await task


async def test_refused_freeze_with_a_policy_leaves_the_brake_as_it_was(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    change = {"status": "frozen", "policyId": "pol_unknown"}
    error_of(await world.call("PATCH", _path(wallet), change), 404, "policy_not_found")
    assert (await world.pay(wallet, to, "1")).status_code == 200

    # A freeze that is on its way goes on, whatever becomes of this one
    world.line.lose_requests = lambda method: method == "getMultipleAccounts"
    error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")
    error_of(await world.call("PATCH", _path(wallet), change), 503, "chain_unavailable")
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    world.line.mend()
    error_of(await world.call("PATCH", _path(wallet), change), 404, "policy_not_found")
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1


async def test_freeze_with_a_policy_goes_on_alone_if_its_outcome_is_unknown(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to, policy = await world.wallet(), await world.payee(), await world.policy()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    change = {"status": "frozen", "policyId": policy["policy_id"]}
    error_of(await world.call("PATCH", _path(wallet), change), 503, "chain_unavailable")
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")

    world.line.mend()

    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1
    assert await world.balance(to) == 0


async def _replace_operator(world: ServiceWorld) -> Keypair:
    """Give the operator's role on the chain to a new key, which the service does not have yet."""
    authority, new = world.service.signers.require_authority(), Keypair()
    replaced = await world.org_update(authority.pubkey(), operator=new.pubkey())
    assert (await world.land([replaced], authority)).err is None
    return new


@pytest.mark.proves("POST /v1/organization/pause")
async def test_brakes_of_a_replaced_operator_hold_until_its_new_key(own_world: ServiceWorld) -> None:
    # Given a service whose operator's key was replaced on the chain
    world, pause = own_world, "/v1/organization/pause"
    wallet, to = await world.wallet(), await world.payee()
    token, agent = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    new = await _replace_operator(world)
    assert (await world.pay(wallet, to, "1", session=token, key=agent)).status_code == 200

    # When it is asked for a freeze and a pause
    refused = [
        await world.call("PATCH", _path(wallet), {"status": "frozen"}),
        await world.call("POST", pause, {"paused": True}),
    ]

    # Then it pays no more, and says what to do
    for answer in refused:
        message = error_of(answer, 503, "chain_unavailable")["message"]
        assert "start the service again with that key." in message
        assert "already blocks the affected payments" in message
    assert (await world.pay(wallet, to, "1", session=token, key=agent)).status_code == 422
    assert {hold.row.kind for hold in world.service.brake.without_request()} == {"freeze", "pause"}
    assert await _frozen(world, wallet) == 0

    # And puts both into force once it is started with the new key
    await world.stop()
    file = Paths(world.settings.data_dir).keys / "operator.json"
    file.unlink()
    write_secret(file, json.dumps(list(bytes(new))))
    await world.start()
    await _until(lambda: not world.service.brake.without_request())
    assert await _frozen(world, wallet) == 1
    assert (await world.fields(world.org))["paused"]
    assert await world.balance(to) == 1_000_000


@pytest.mark.parametrize("writable", [True, False], ids=["stored", "in_memory"])
async def test_unfinished_freeze_promises_no_more_than_is_stored(own_world: ServiceWorld, writable: bool) -> None:
    # Given a chain that takes the freeze and does not confirm it, as on a full disk
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(confirm_timeout=0.5)
    world.line.lose_requests = lambda method: method == "sendTransaction"
    writer: Any = sqlite_writer(world.service.db)
    writer.execute(f"PRAGMA query_only={'OFF' if writable else 'ON'}")

    error = error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")

    message = error["message"]
    assert ("retries the freeze until the chain enforces it" in message) == writable
    assert ("lost if the service stops before" in message) == (not writable)
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")
    # What the answer says is what a killed process leaves
    kept = world.service.db.read_now(all_brakes)
    assert [row.scope for row in kept] == ([wallet["wallet_id"]] if writable else [])
    writer.execute("PRAGMA query_only=OFF")


async def test_brake_engaged_while_an_attempt_is_read_stops_its_resend(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    paid = _attempt(world, (await world.pay(wallet, to, "1")).json()["tx_id"])
    service, sent = world.service, world.line.methods.count("sendTransaction")
    read = service.db.read

    async def slow(work: Any, **options: Any) -> Any:
        found = await read(work, **options)
        service.brake.engage(system(world.org, "test"), wallet["wallet_id"], "freeze")
        return found

    monkeypatch.setattr(service.db, "read", slow)
    outcome = await service.submitter.resend(paid)

    assert outcome.status == "pending"
    assert world.line.methods.count("sendTransaction") == sent


@pytest.mark.parametrize("lie", LIES)
async def test_brakes_outlast_a_node_that_lies(own_world: ServiceWorld, lie: str) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    other = await world.wallet()
    world.line.alter = LIES[lie]
    error_of(await world.call("PATCH", _path(wallet), {"status": "frozen"}), 503, "chain_unavailable")
    error_of(await world.call("POST", "/v1/organization/pause", {"paused": True}), 503, "chain_unavailable")
    # The service goes on with both by itself, and gives neither up.
    asked = len(world.line.methods)
    await _until(lambda: len(world.line.methods) > asked + 4)
    assert {row.kind for row in world.service.db.read_now(all_brakes)} == {"freeze", "pause"}
    world.line.mend()

    await _until(lambda: not world.service.db.read_now(all_brakes))
    assert await _frozen(world, wallet) == 1
    assert (await world.ok("GET", "/v1/organization"))["paused"] is True
    error_of(await world.pay(other, to, "1"), 422, "org_paused")


async def test_brakes_are_not_in_force_because_an_old_state_says_so(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PATCH", _path(wallet), {"status": "frozen"})
    await world.ok("POST", "/v1/organization/pause", {"paused": True})
    kept = [await _raw(world, one) for one in (wallet["chain_address"], world.org)]
    await world.ok("POST", "/v1/organization/pause", {"paused": False})
    await world.ok("PATCH", _path(wallet), {"status": "active"})

    for old, call in zip(kept, (("PATCH", _path(wallet), {"status": "frozen"}), _PAUSE), strict=True):
        world.line.alter = lambda method, result, old=old: old if method == "getMultipleAccounts" else result
        error_of(await world.call(*call), 503, "chain_unavailable")
        world.line.mend()
    await _until(lambda: not world.service.db.read_now(all_brakes))
    assert await _frozen(world, wallet) == 1
    error_of(await world.pay(wallet, to, "1"), 422, "org_paused")


_PAUSE = ("POST", "/v1/organization/pause", {"paused": True})


async def _raw(world: ServiceWorld, address: str) -> Json:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "getMultipleAccounts", "params": [[address], {"encoding": "base64"}]}
    return dict(json.loads(await world.line(json.dumps(asked).encode()))["result"])
