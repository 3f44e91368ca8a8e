"""The reconciliation: what differs from the chain is reported, and doubt is no difference."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Table, delete, insert, select, update

from app.chain.client import ACCOUNT_BATCH
from app.chain.errors import ChainUnavailable
from app.core.event_catalogue import EVENTS
from app.reconciliation.reconciliation import Reconciliation
from app.store.allowances import table as allowances
from app.store.organisations import reserves
from app.store.read_tables import escrows, wallets
from tests.support.allowances import USDC, grant, known
from tests.support.escrows import A2A, agent, of, shows_output
from tests.support.http import PATIENCE
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_COMMON = {"event_id", "event", "severity", "summary", "timestamp"}


async def _reconcile(world: ServiceWorld) -> tuple[str, float]:
    """Compare once; return the result, and the number of accounts about which there was doubt."""
    result = await Reconciliation(world.service, pace=0, second_look=0).tick()
    return result, await _metric(world, "agent_vault_reconciliation_undecided")


async def _metric(world: ServiceWorld, name: str) -> float:
    text = (await world.client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


async def _reported(world: ServiceWorld, name: str = "reconciliation.difference") -> list[Json]:
    page = await world.ok("GET", f"/v1/events?type={name}&limit=100")
    return list(reversed(page["data"]))


async def _spoil(world: ServiceWorld, table: Table, key: Any, **values: Any) -> None:
    """Write a read model wrong, past the service."""
    await world.service.db.write(lambda conn: conn.execute(update(table).where(key).values(**values)))


def _row(wallet: Json) -> Any:
    return wallets.c.wallet_id == wallet["wallet_id"]


async def test_nothing_differs_after_every_kind_of_change(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving, to = await agent(world), await agent(world), await world.payee()
    done = await paying.lock(receiving)
    await receiving.ok("POST", of(done, "complete"), shows_output())
    disputed = await paying.lock(to)
    await paying.ok("POST", of(disputed, "dispute"), {"reason": "late"})
    await paying.lock(receiving)
    policy = await world.policy(maxPerTx="5")
    wallet = await world.wallet(policy["policy_id"])
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.pay(wallet, to, "1")
    await world.pay(wallet, receiving.vault, "1")
    await world.ok("PATCH", path, {"status": "frozen"})
    await world.ok("POST", f"{path}/withdraw", {"amount": "5", "currency": "USDC"})
    await world.ok("PATCH", path, {"policyId": "pol_moderate"})
    empty = await world.wallet(funds=None)
    await world.ok("DELETE", f"/v1/wallets/{empty['wallet_id']}")
    await world.ok("POST", "/v1/organization/pause", {"paused": True})

    assert await _reconcile(world) == ("clean", 0)
    assert await _reported(world) == []


@pytest.mark.proves("event reconciliation.difference")
async def test_wrong_balance_is_reported_once_and_again_when_it_changes(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, _ = await world.wallet(funds="100"), await world.wallet(funds="100")
    hook = await world.ok(
        "POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "events": ["reconciliation.difference"]}
    )

    await _spoil(world, wallets, _row(wallet), balance=90_000_000)
    assert (await _reconcile(world))[0] == "differences"
    assert (await _reconcile(world))[0] == "differences"
    await world.restart()
    assert (await _reconcile(world))[0] == "differences"

    [event] = await _reported(world)
    assert (event["severity"], event["subject"], event["wallet_id"]) == ("critical", "wallet", wallet["wallet_id"])
    assert event["address"] == wallet["chain_address"]
    assert event["differences"] == {"usdc_balance": {"chain": "100.00", "service": "90.00"}}
    kind = EVENTS["reconciliation.difference"]
    assert set(event) - _COMMON == {*kind.fields, *kind.optional} - {"escrow_id"}
    [found] = (await world.ok("GET", f"/v1/events?severity=critical&walletId={wallet['wallet_id']}"))["data"]
    assert found["event_id"] == event["event_id"]

    await _spoil(world, wallets, _row(wallet), balance=80_000_000)
    await _reconcile(world)
    assert [one["differences"]["usdc_balance"]["service"] for one in await _reported(world)] == ["90.00", "80.00"]
    path = f"/v1/webhooks/{hook['webhook_id']}/deliveries"
    async with asyncio.timeout(PATIENCE):
        while not (sent := (await world.ok("GET", path))["data"]):  # noqa: ASYNC110 - it has no signal
            await asyncio.sleep(0.05)
    assert {one["event"] for one in sent} == {"reconciliation.difference"}


@pytest.mark.proves("event reconciliation.cleared")
async def test_difference_that_is_gone_is_cleared_and_may_come_again(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="100")
    for times in (1, 2):
        await _spoil(world, wallets, _row(wallet), balance=1)
        await _reconcile(world)
        assert len(await _reported(world)) == times
        await _spoil(world, wallets, _row(wallet), balance=100_000_000)

        assert await _reconcile(world) == ("clean", 0)
        assert await _reconcile(world) == ("clean", 0)

        cleared = await _reported(world, "reconciliation.cleared")
        assert [(one["severity"], one["wallet_id"]) for one in cleared] == [("info", wallet["wallet_id"])] * times
        kind = EVENTS["reconciliation.cleared"]
        assert set(cleared[0]) - _COMMON == {*kind.fields, *kind.optional} - {"escrow_id"}


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"frozen": 1}, "frozen"),
        ({"archived": True}, "archived"),
        ({"policy": str(Pubkey.default())}, "policy"),
        ({"budget": str(Keypair().pubkey())}, "budget"),
        ({"session_authority": str(Pubkey.default())}, "session_authority"),
        ({"sequence": 1000, "frozen": 1}, "frozen"),
    ],
)
async def test_wrong_state_of_a_wallet_is_found(world: ServiceWorld, values: dict[str, Any], fact: str) -> None:
    wallet = await world.wallet()
    before = await world.service.db.read(lambda conn: conn.execute(select(wallets).where(_row(wallet))).one())

    await _spoil(world, wallets, _row(wallet), **values)
    await _reconcile(world)

    event = (await _reported(world))[-1]
    assert (event["wallet_id"], fact in event["differences"]) == (wallet["wallet_id"], True)
    await _spoil(world, wallets, _row(wallet), **before._asdict())
    assert await _reconcile(world) == ("clean", 0)


async def test_wallet_missing_from_the_read_models_is_found(own_world: ServiceWorld) -> None:
    world = own_world
    lost, hidden = await world.wallet(), await world.wallet()
    await world.service.db.write(lambda conn: conn.execute(delete(wallets).where(_row(lost))))
    await _spoil(world, wallets, _row(hidden), vault="no address")

    await _reconcile(world)

    found = {one["wallet_id"]: one["differences"]["usdc_balance"] for one in await _reported(world)}
    assert found == {one["wallet_id"]: {"chain": "100.00", "service": None} for one in (lost, hidden)}


async def test_wrong_reserve_is_found(own_world: ServiceWorld) -> None:
    world = own_world
    await _spoil(world, reserves, reserves.c.org == world.org, balance=5, paused=True)

    await _reconcile(world)

    [event] = await _reported(world)
    assert (event["subject"], event["address"]) == ("reserve", world.org)
    assert event["differences"] == {
        "paused": {"chain": False, "service": True},
        "usdc_balance": {"chain": "1000000.00", "service": "0.000005"},
    }


@pytest.mark.proves("event reconciliation.difference")
async def test_wrong_held_amount_is_found(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(allowAllowances=True)
    purse = await grant(world, await agent(world, policy["policy_id"]), 6 * USDC)
    await known(world, purse)

    await _spoil(world, allowances, allowances.c.address == str(purse.address), amount=USDC)
    await _reconcile(world)

    [event] = await _reported(world)
    assert event["differences"] == {"held_amount": {"chain": "6.00", "service": "1.00"}}


@pytest.mark.proves("event reconciliation.difference")
@pytest.mark.parametrize(
    ("values", "fact"),
    [({"amount": 1}, "amount"), ({"status": "disputed"}, "disputed"), ({"status": "released"}, None)],
)
async def test_wrong_escrow_is_found(own_world: ServiceWorld, values: dict[str, Any], fact: str | None) -> None:
    world = own_world
    paying = await agent(world)
    escrow = await paying.lock(await world.payee())

    await _spoil(world, escrows, escrows.c.escrow_id == escrow["escrow_id"], **values)
    await _reconcile(world)

    [event] = await _reported(world)
    if fact is None:
        # The service shows it as settled; the vault's count tells.
        assert event["differences"] == {"open_escrows": {"chain": 1, "service": 0}}
    else:
        assert (event["subject"], event["escrow_id"], list(event["differences"])) == (
            *("escrow", escrow["escrow_id"]),
            [fact],
        )


async def test_escrow_whose_tokens_are_gone_is_found(own_world: ServiceWorld) -> None:
    world = own_world
    escrow = await (await agent(world)).lock(await world.payee(), "10")
    tokens = str(world.service.addresses.escrow_tokens(Pubkey.from_string(escrow["chain_address"])))
    await world.localnet.mint_usdc(Pubkey.from_string(tokens), 1)
    assert await _reconcile(world) == ("clean", 0)
    through = world.line.through

    async def steal(body: bytes) -> bytes:
        """Answer with an empty token account."""
        request, answer = json.loads(body), json.loads(await through(body))
        if isinstance(request, dict) and request["method"] == "getMultipleAccounts" and tokens in request["params"][0]:
            answer["result"]["value"][request["params"][0].index(tokens)] = None
        return json.dumps(answer).encode()

    world.line.through = steal
    await _reconcile(world)

    [event] = await _reported(world)
    assert event["differences"] == {"covered": {"chain": False, "service": True}}


async def test_deposit_by_an_outsider_is_no_difference(own_world: ServiceWorld) -> None:
    world = own_world
    # Given that nothing compares the indexer's balances meanwhile
    world.service.indexer._check_interval = 3600
    wallet = await world.wallet(funds="100")
    vault = Pubkey.from_string(wallet["chain_address"])
    for account in (world.service.addresses.token_account(vault), world.build.reserve_tokens):
        await world.localnet.mint_usdc(account, 7)

    result, undecided = await _reconcile(world)
    assert (result, undecided) in {("clean", 2), ("clean", 0)}

    await world.service.indexer.check()
    await world.catch_up()
    assert await _reconcile(world) == ("clean", 0)
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"] == "100.000007"
    assert await _reported(world) == []


async def test_storm_of_payments_raises_no_alarm(own_world: ServiceWorld) -> None:
    world = own_world
    fleet, to = [await world.wallet(funds="1000") for _ in range(6)], await world.payee()
    paying, stormy = await agent(world, funds="1000"), True
    # Given an indexer that reads every transaction late
    world.line.hold = lambda method: asyncio.sleep(0.02) if method == "getTransaction" else None

    async def pay(wallet: Json, other: Json) -> int:
        count = 0
        while stormy:
            receiver = to if count % 2 else other["chain_address"]
            assert (await world.pay(wallet, receiver, "1")).status_code == 200
            count += 1
        return count

    async def escrow() -> int:
        count = 0
        while stormy:
            made = await paying.lock(to, "1")
            await paying.ok("POST", of(made, "dispute"), {"reason": "late"})
            await world.ok("POST", of(made, "resolve"), {"decision": "refund"})
            count += 1
        return count

    storm = [asyncio.create_task(pay(*pair)) for pair in zip(fleet, fleet[1:] + fleet[:1], strict=True)]
    storm.append(asyncio.create_task(escrow()))
    results = [(await _reconcile(world))[0] for _ in range(60)]
    stormy = False
    counts = await asyncio.gather(*storm)

    assert set(results) == {"clean"}
    assert sum(counts) > 20
    assert await _reported(world) == []
    # And no doubt remains once the indexer has looked at what was stored out of order
    async with asyncio.timeout(PATIENCE):
        while await _reconcile(world) != ("clean", 0):
            await world.service.indexer.check()
            await world.catch_up()
    assert await _reported(world) == []


async def test_wrong_state_of_a_busy_wallet_is_found(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to, stormy = await world.wallet(funds="1000"), await world.payee(), True
    wrong = str(Keypair().pubkey())
    await _spoil(world, wallets, _row(wallet), session_authority=wrong)

    async def pay() -> None:
        while stormy:
            await world.pay(wallet, to, "0.01")

    storm = asyncio.create_task(pay())
    async with asyncio.timeout(PATIENCE):
        while not (found := await _reported(world)):
            await _reconcile(world)
    stormy = False
    await storm

    assert [set(one["differences"]) for one in found] == [{"session_authority"}]


async def test_node_whose_history_lags_raises_no_alarm(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, paying = await world.wallet(), await agent(world)
    escrow = await paying.lock(await world.payee())
    gone = await world.wallet(funds=None)
    record, closed = (world.wallet_record(one["wallet_id"]) for one in (wallet, gone))
    build, operator = world.build, world.service.signers.operator
    # Given a node that shows accounts at once and their transactions late
    world.line.alter = lambda method, result: [] if method == "getSignaturesForAddress" else result
    freeze = build.freeze_wallet(
        signer=operator.pubkey(),
        vault=Pubkey.from_string(record.vault),
        policy=Pubkey.from_string(record.policy.address),
        action="Freeze",
    )
    close = build.close_wallet(
        operator=operator.pubkey(),
        vault=Pubkey.from_string(closed.vault),
        policy=Pubkey.from_string(closed.policy.address),
        rent_receiver=world.service.signers.fee_payer_address,
    )
    assert (await world.land([freeze, close], operator)).err is None
    await world.later(10_000)
    assert await world.keeper().tick() == 1

    result, undecided = await _reconcile(world)

    assert (result, undecided) == ("clean", 4)
    assert await _reported(world) == []
    world.line.mend()
    await world.catch_up()
    assert await _reconcile(world) == ("clean", 0)
    assert (await world.ok("GET", f"{A2A}/{escrow['escrow_id']}"))["status"] == "refunded"


async def test_unreachable_node_is_no_difference_and_clears_none(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, other = await world.wallet(), await world.wallet()
    await _spoil(world, wallets, _row(wallet), balance=1)
    await _reconcile(world)
    ended = await _metric(world, "agent_vault_reconciliation_timestamp_seconds")
    await _spoil(world, wallets, _row(wallet), balance=100_000_000)
    await _spoil(world, wallets, _row(other), balance=1)
    cuts: list[Callable[[str], bool]] = [lambda _method: True, lambda method: method == "getSignaturesForAddress"]
    for cut in cuts:
        world.line.lose_requests = cut
        with pytest.raises(ChainUnavailable):
            await _reconcile(world)

        assert len(await _reported(world)) == 1
        assert await _reported(world, "reconciliation.cleared") == []
        assert await _metric(world, 'agent_vault_reconciliation_result{result="incomplete"}') == 1
        assert await _metric(world, "agent_vault_reconciliation_timestamp_seconds") == ended
    world.line.mend()
    await _reconcile(world)
    assert [one["wallet_id"] for one in await _reported(world)] == [wallet["wallet_id"], other["wallet_id"]]
    assert len(await _reported(world, "reconciliation.cleared")) == 1


async def test_many_wallets_are_read_in_few_calls_without_locks(own_world: ServiceWorld) -> None:
    world, count = own_world, 1_000
    made = await world.wallet()
    row = await world.service.db.read(lambda conn: conn.execute(select(wallets).where(_row(made))).one())
    # Given wallets that are archived, and of which nothing is left on the chain
    rows = [
        {
            **row._asdict(),
            "wallet_id": f"wal_{number}",
            "balance": 0,
            "archived": True,
            "vault": str(Keypair().pubkey()),
            "tokens": str(Keypair().pubkey()),
        }
        for number in range(count)
    ]
    await world.service.db.write(lambda conn: conn.execute(insert(wallets), rows))
    await world.catch_up()  # lest the projector still work for the wallet's creation
    sizes, locked, through = [], set(), world.line.through
    ours = {row["tokens"] for row in rows} | {row["vault"] for row in rows}

    async def watch(body: bytes) -> bytes:
        request = json.loads(body)
        asked = request["params"][0] if isinstance(request, dict) and request["params"] else ()
        # The indexer compares balances of its own by the same method.
        if isinstance(asked, list) and request["method"] == "getMultipleAccounts" and not ours.isdisjoint(asked):
            sizes.append(len(asked))
            locked.add(world.service.projector._applying.locked() or len(world.service.locks._locks) > 0)
        return await through(body)

    world.line.through = watch
    assert await _reconcile(world) == ("clean", 0)

    assert max(sizes) <= ACCOUNT_BATCH
    assert len(sizes) <= 2 * count / ACCOUNT_BATCH + 2
    assert locked == {False}


@pytest.mark.proves("Limits: Reconciliation with the chain")
async def test_reconciliation_runs_with_the_service_unless_switched_off(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet()
    await _spoil(world, wallets, _row(wallet), balance=1)
    await world.restart(reconciliation=True, reconciliation_interval=0.05)
    result = 'agent_vault_reconciliation_result{result="differences"}'
    async with asyncio.timeout(2 * PATIENCE):
        while not await _metric(world, result):  # noqa: ASYNC110 - it has no signal
            await asyncio.sleep(0.05)
    assert len(await _reported(world)) == 1

    await world.restart(reconciliation=False)
    assert not [one for one in asyncio.all_tasks() if one.get_name() == Reconciliation.name]
