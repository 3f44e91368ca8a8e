"""Refunds by the keeper on a real chain: when due, once, and with one call each."""

import asyncio
from typing import Any

import pytest
from solders.account import Account
from solders.pubkey import Pubkey
from sqlalchemy import insert, select

from app.chain.errors import ChainUnavailable
from app.chain.escrow_instructions import OpenEscrow
from app.core.identifiers import new_reference
from app.store.read_tables import escrows
from tests.support.keeper import (
    PATIENCE,
    asks_history,
    calls_of,
    events_of,
    path_of,
    queries_of,
    shown,
)
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STATE = 108
"""Where a token account keeps whether it is frozen."""


async def _escrow(
    world: ServiceWorld, paying: Json, receiving: Json, amount: int = 5_000_000, seconds: int = 3600
) -> Pubkey:
    """Lock money for so many seconds and return the escrow's address."""
    service, vault = world.service, Pubkey.from_string(paying["chain_address"])
    found = world.wallet_record(paying["wallet_id"])
    operator = service.signers.operator
    create = service.instructions(world.org).create_escrow(
        payer=service.signers.fee_payer_address,
        signer=operator.pubkey(),
        policy=Pubkey.from_string(found.policy.address),
        vault=vault,
        receiver=Pubkey.from_string(receiving["chain_address"]),
        counter=await _counter(world, vault),
        amount=amount,
        reference=new_reference(),
        task_hash=bytes(32),
        proof_kinds=1,
        timeout=seconds,
    )
    address = service.addresses.escrow(vault, await _counter(world, vault))
    assert (await world.land([create], operator)).err is None
    await world.catch_up()
    return address


async def _counter(world: ServiceWorld, vault: Pubkey) -> int:
    account = await world.service.chain.account(vault)
    assert account is not None
    return int(world.service.codec.decode_account(account.data).data["escrow_counter"])


async def _dispute(world: ServiceWorld, paying: Json, receiving: Json, escrow: Pubkey) -> None:
    service, operator = world.service, world.service.signers.operator
    vault, receiver = (Pubkey.from_string(wallet["chain_address"]) for wallet in (paying, receiving))
    where = OpenEscrow(escrow, vault, receiver, service.signers.fee_payer_address)
    dispute = service.instructions(world.org).dispute_escrow(
        where, signer=operator.pubkey(), reason_hash=bytes(32), evidence_hash=bytes(32)
    )
    assert (await world.land([dispute], operator)).err is None
    await world.catch_up()


def _status(world: ServiceWorld, escrow: Pubkey) -> str | None:
    of_address = select(escrows.c.status).where(escrows.c.address == str(escrow))
    return world.service.db.read_now(lambda conn: conn.scalar(of_address))


@pytest.mark.proves("Escrows: locked to refunded")
async def test_escrow_is_refunded_once_its_deadline_has_come_and_not_before(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving, keeper = await world.wallet(), await world.wallet(), world.keeper()
    escrow = await _escrow(world, paying, receiving)
    later = await _escrow(world, paying, receiving, seconds=7200)
    await world.later(3590)
    with calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert calls == []

    await world.later(11)
    assert await keeper.tick() == 1

    await world.catch_up()
    assert (_status(world, escrow), _status(world, later)) == ("refunded", "locked")
    assert await shown(world, paying) == ("active", "95.00")
    assert await world.accounts(escrow, world.service.addresses.escrow_tokens(escrow)) == [None, None]
    [reported] = await events_of(world, paying, "escrow.refunded")
    assert reported["reason"] == "timeout"
    rows = (await world.ok("GET", path_of(paying, "/transactions?type=escrow_refund")))["data"]
    assert [(row["amount"], row["status"]) for row in rows] == [("5.00", "confirmed")]
    assert await world.keeper().tick() == 0


@pytest.mark.proves("Escrows: disputed to refunded")
async def test_disputed_escrow_is_refunded_after_thirty_undecided_days(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving, keeper = await world.wallet(), await world.wallet(), world.keeper()
    escrow = await _escrow(world, paying, receiving)
    await world.later(1800)
    await _dispute(world, paying, receiving, escrow)
    await world.later(30 * 86_400 - 10)
    with calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert calls == []

    await world.later(11)
    assert await keeper.tick() == 1

    await world.catch_up()
    assert _status(world, escrow) == "refunded"
    assert await shown(world, paying) == ("active", "100.00")
    [reported] = await events_of(world, paying, "escrow.refunded")
    assert reported["reason"] == "dispute_undecided"


async def test_two_keepers_at_once_refund_once(own_world: ServiceWorld) -> None:
    world = own_world
    paying = await world.wallet()
    escrow = await _escrow(world, paying, await world.wallet())
    await _escrow(world, paying, await world.wallet(), seconds=86_400)
    await world.later(3601)
    async with world.twin() as (other, line):
        ready = asyncio.Barrier(2)
        world.line.hold = line.hold = lambda method: ready.wait() if method == "sendTransaction" else None

        async with asyncio.timeout(PATIENCE):
            sent = await asyncio.gather(world.keeper().tick(), world.keeper(other).tick())

    assert sorted(sent) == [0, 1]
    await world.catch_up()
    assert _status(world, escrow) == "refunded"
    # The vault holds what it held minus the other escrow, which is still locked.
    assert await world.balance(paying["chain_address"]) == 95_000_000


async def test_refund_whose_answer_was_lost_is_refused_after_a_restart(own_world: ServiceWorld) -> None:
    world = own_world
    paying = await world.wallet()
    escrow = await _escrow(world, paying, await world.wallet())
    await world.later(3601)
    world.line.lose_answers = lambda method: method == "sendTransaction"
    world.line.lose_requests = asks_history
    with pytest.raises(ChainUnavailable):
        await world.keeper().tick()

    await world.stop()
    await world.start(lose_requests=asks_history)
    assert _status(world, escrow) == "locked"
    assert await world.keeper().tick() == 0

    world.line.mend()
    assert await shown(world, paying) == ("active", "100.00")
    assert _status(world, escrow) == "refunded"


@pytest.mark.sqlite("counts SQLite's statements")
async def test_ten_thousand_open_escrows_cost_one_query_and_two_calls_a_refund(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving, keeper = await world.wallet(), await world.wallet(), world.keeper()
    due = [await _escrow(world, paying, receiving) for _ in range(3)]
    await _fill_up(world, due[0], 10_000)
    with queries_of(world.service) as queries, calls_of(world.service) as calls:
        assert await keeper.tick() == 0
    assert (len([one for one in queries if "FROM escrows" in one]), calls) == (1, [])

    await world.later(3601)
    with queries_of(world.service) as queries, calls_of(world.service) as calls:
        assert await keeper.tick() == 3

    assert len([one for one in queries if "FROM escrows" in one]) == 1
    # One for each kind of job, however many are due.
    assert len(queries) == 4, queries
    # Only the escrow's own account names the budget that it was charged to.
    assert sorted(calls) == ["getMultipleAccounts"] * 3 + ["sendTransaction"] * 3
    await world.catch_up()
    assert {_status(world, escrow) for escrow in due} == {"refunded"}


@pytest.mark.sqlite("asks SQLite for its plans")
async def test_due_escrows_are_found_through_an_index(own_world: ServiceWorld) -> None:
    world = own_world
    with queries_of(world.service) as queries:
        await world.keeper().tick()
    [query] = [one for one in queries if "FROM escrows" in one]

    plan = world.service.db.read_now(
        lambda conn: conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", (0,) * query.count("?")).all()
    )

    assert plan[0].detail == "SEARCH escrows USING INDEX escrows_due (due_at<?)"


async def _fill_up(world: ServiceWorld, like: Pubkey, count: int) -> None:
    """Add escrows to the read models that are due in a year."""

    def fill(conn: Any) -> None:
        row = dict(conn.execute(select(escrows).where(escrows.c.address == str(like))).one()._mapping)
        row["due_at"] = row["deadline"] = row["deadline"] + 365 * 86_400
        names = [f"filler-{number}" for number in range(count)]
        conn.execute(insert(escrows), [{**row, "escrow_id": name, "address": name} for name in names])

    await world.service.db.write(fill)


def _freeze_tokens(world: ServiceWorld, owner: str, *, frozen: bool) -> None:
    """Freeze or thaw the token account of an address, as the mint's issuer would."""
    bank, tokens = world.localnet.chain.bank, world.service.addresses.token_account(Pubkey.from_string(owner))
    account = bank.get(tokens)
    assert account is not None
    data = bytearray(account.data)
    data[_STATE] = 2 if frozen else 1
    bank.put(tokens, Account(account.lamports, bytes(data), account.owner))


async def test_share_that_could_not_be_paid_is_collected_after_the_thaw(own_world: ServiceWorld) -> None:
    # Given a dispute that is split while the receiving wallet's token account is frozen
    world = own_world
    paying, receiving, keeper = await world.wallet(), await world.wallet(), world.keeper()
    escrow = await _escrow(world, paying, receiving)
    await _dispute(world, paying, receiving, escrow)
    _freeze_tokens(world, receiving["chain_address"], frozen=True)
    [listed] = (await world.ok("GET", f"/v1/payments/a2a?walletId={paying['wallet_id']}"))["data"]
    path = f"/v1/payments/a2a/{listed['escrow_id']}/resolve"
    end = await world.ok("POST", path, {"decision": "split", "releasedAmount": "2"})

    # Then the sender has its share, and the receiver's waits
    assert (end["status"], end["released_amount"], end["refunded_amount"]) == ("settled", "2.00", "3.00")
    assert await shown(world, paying) == ("active", "98.00")
    assert await shown(world, receiving) == ("active", "100.00")
    assert await events_of(world, receiving, "escrow.released") == []
    rows = path_of(receiving, "/transactions?type=escrow_release")
    assert (await world.ok("GET", rows))["data"] == []
    assert await keeper.tick() == 0

    # And the keeper pays it once the token account is thawed
    _freeze_tokens(world, receiving["chain_address"], frozen=False)
    await world.later(3_600)
    assert await world.keeper().tick() == 1
    await world.catch_up()
    assert await shown(world, receiving) == ("active", "102.00")
    assert [one["amount"] for one in (await world.ok("GET", rows))["data"]] == ["2.00"]
    assert [one["amount"] for one in await events_of(world, receiving, "escrow.released")] == ["2.00"]
    assert await world.accounts(escrow, world.service.addresses.escrow_tokens(escrow)) == [None, None]
    assert await world.keeper().tick() == 0
