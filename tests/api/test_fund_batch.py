"""Funding several wallets in one transaction: all of them or none."""

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair

from app.chain.instructions import UNLIMITED
from app.chain.transactions import MAX_SIZE, unsigned
from app.core.identifiers import new_reference
from app.store.attempts import pending_attempts
from app.submission.recovery import Recovery
from app.wallets.models import MAX_ALLOCATIONS
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PATH = "/v1/wallets/fund-batch"


def _allocate(wallets: list[Json], *amounts: str) -> Json:
    allocations = [
        {"walletId": wallet["wallet_id"], "amount": amount} for wallet, amount in zip(wallets, amounts, strict=True)
    ]
    return {"allocations": allocations}


async def _wallets(world: ServiceWorld, number: int) -> list[Json]:
    return [await world.wallet(funds=None) for _ in range(number)]


async def _reserve(world: ServiceWorld) -> int:
    return await world.balance(world.org)


async def _balances(world: ServiceWorld, wallets: list[Json]) -> list[str]:
    return [(await world.ok("GET", f"/v1/wallets/{one['wallet_id']}"))["usdc_balance"] for one in wallets]


async def _fundings(world: ServiceWorld, wallet: Json) -> list[Json]:
    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=funding"))["data"]
    return list(rows)


@pytest.mark.proves(
    "POST /v1/wallets/fund-batch",
    "FundWallets(allocations, currency)",
    "Allocation(walletId, amount)",
    "FundedBatch(funded, org_balance_remaining, tx_signature, status)",
)
async def test_batch_funds_every_wallet_in_one_transaction(world: ServiceWorld) -> None:
    wallets, before = await _wallets(world, 3), await _reserve(world)

    answer = await world.ok("POST", _PATH, {**_allocate(wallets, "1", "2.5", "0.000001"), "currency": "USDC"})

    assert answer["status"] == "confirmed"
    assert [one["wallet_id"] for one in answer["funded"]] == [one["wallet_id"] for one in wallets]
    assert [one["funded_amount"] for one in answer["funded"]] == ["1.00", "2.50", "0.000001"]
    assert [one["usdc_balance"] for one in answer["funded"]] == ["1.00", "2.50", "0.000001"]
    assert await _balances(world, wallets) == ["1.00", "2.50", "0.000001"]
    left = before - await _reserve(world)
    assert left == 3_500_001
    assert {one["org_balance_remaining"] for one in answer["funded"]} == {answer["org_balance_remaining"]}
    # Each wallet has a row of this transaction, and the answer names its id
    for wallet, told in zip(wallets, answer["funded"], strict=True):
        [row] = await _fundings(world, wallet)
        assert (row["tx_id"], row["status"], row["amount"]) == (told["tx_id"], "confirmed", told["funded_amount"])
        assert row["tx_signature"] == told["tx_signature"] == answer["tx_signature"]
        events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}&event=wallet.funded"))["data"]
        assert [one["tx_id"] for one in events] == [told["tx_id"]]


@pytest.mark.proves("FundedBatch(funded)")
async def test_funded_wallet_of_a_batch_answers_like_a_funding(world: ServiceWorld) -> None:
    [wallet] = await _wallets(world, 1)

    batch = await world.ok("POST", _PATH, _allocate([wallet], "1"))
    alone = await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "1"})

    [told] = batch["funded"]
    assert list(told) == list(alone)
    assert (told["usdc_balance"], alone["usdc_balance"]) == ("1.00", "2.00")


@pytest.mark.proves("Limits: Wallets of a batch")
async def test_batch_holds_as_many_wallets_as_fit_into_a_transaction(world: ServiceWorld) -> None:
    wallets = await _wallets(world, MAX_ALLOCATIONS + 1)
    amounts = ["1"] * len(wallets)

    answer = await world.ok("POST", _PATH, _allocate(wallets[:-1], *amounts[:-1]))
    error = error_of(await world.call("POST", _PATH, _allocate(wallets, *amounts)), 400, "invalid_request")

    assert len(answer["funded"]) == MAX_ALLOCATIONS
    assert f"at most {MAX_ALLOCATIONS} items" in error["message"]
    assert await _balances(world, wallets) == [*["1.00"] * MAX_ALLOCATIONS, "0.00"]


async def test_maximum_is_what_the_size_of_a_transaction_allows(world: ServiceWorld) -> None:
    def size(number: int) -> int:
        instructions = [
            world.build.fund_wallet(
                operator=world.service.signers.operator_address,
                vault=Keypair().pubkey(),
                amount=1,
                reference=new_reference(),
            )
            for _ in range(number)
        ]
        return len(unsigned(instructions, payer=world.service.signers.fee_payer_address))

    assert size(MAX_ALLOCATIONS) <= MAX_SIZE < size(MAX_ALLOCATIONS + 1)


@pytest.mark.proves("FundWallets(allocations)", "Allocation(walletId, amount)")
@pytest.mark.parametrize(
    ("allocations", "code"),
    [
        ([], "invalid_request"),
        (None, "invalid_request"),
        ("all", "invalid_request"),
        ([{"walletId": "wal_x"}], "invalid_request"),
        ([{"amount": "1"}], "invalid_request"),
        ([{"walletId": "wal_x", "amount": "1", "memo": "no"}], "invalid_request"),
        ([{"walletId": "wal_x", "amount": "1"}, {"walletId": "wal_x", "amount": "2"}], "invalid_request"),
        ([{"walletId": "wal_x", "amount": "1"}, {"walletId": "wal_y", "amount": "0"}], "invalid_amount"),
        ([{"walletId": "wal_x", "amount": "-1"}], "invalid_amount"),
        ([{"walletId": "wal_x", "amount": 1}], "invalid_amount"),
        ([{"walletId": "wal_x", "amount": "0.0000001"}], "invalid_amount"),
    ],
)
async def test_malformed_allocations_are_refused(world: ServiceWorld, allocations: Any, code: str) -> None:
    error_of(await world.call("POST", _PATH, {"allocations": allocations}), 400, code)


@pytest.mark.proves("Limits: Currency", "FundWallets(currency)")
async def test_other_currency_is_refused(world: ServiceWorld) -> None:
    body = {**_allocate(await _wallets(world, 1), "1"), "currency": "EURC"}

    error_of(await world.call("POST", _PATH, body), 400, "invalid_request")


@pytest.mark.proves("POST /v1/wallets/fund-batch")
async def test_batch_with_one_unfundable_wallet_funds_none(world: ServiceWorld) -> None:
    wallets, before = await _wallets(world, 3), await _reserve(world)
    neighbour = await world.organisation("batch-neighbour")
    theirs = await world.ok(
        "POST",
        "/v1/wallets",
        {"agentId": "theirs", "label": "Theirs", "policyId": "pol_moderate"},
        key=world.key("admin", org=neighbour),
    )
    archived = wallets.pop()
    await world.ok("DELETE", f"/v1/wallets/{archived['wallet_id']}")

    for odd, status, code in (
        ({"wallet_id": "wal_unknown"}, 404, "wallet_not_found"),
        (theirs, 404, "wallet_not_found"),
        (archived, 422, "wallet_archived"),
    ):
        error = error_of(await world.call("POST", _PATH, _allocate([*wallets, odd], "1", "1", "1")), status, code)
        assert error["wallet_id"] == odd["wallet_id"]

    assert await _balances(world, wallets) == ["0.00", "0.00"]
    assert await _reserve(world) == before


@pytest.mark.proves("error org_insufficient_balance")
async def test_reserve_too_small_for_all_together_moves_nothing(world: ServiceWorld) -> None:
    wallets, before = await _wallets(world, 2), await _reserve(world)
    each = f"{before // 2 // 1_000_000 + 1}"

    error_of(await world.call("POST", _PATH, _allocate(wallets, each, each)), 422, "org_insufficient_balance")

    assert await _reserve(world) == before
    assert await _balances(world, wallets) == ["0.00", "0.00"]
    assert [await _fundings(world, one) for one in wallets] == [[], []]


async def _update_org(world: ServiceWorld, **changes: Any) -> None:
    authority = world.service.signers.require_authority()
    change = await world.org_update(authority.pubkey(), **changes)
    assert (await world.land([change], authority)).err is None


async def test_batch_counts_as_a_whole_against_the_operators_daily_limit(own_world: ServiceWorld) -> None:
    world = own_world
    wallets = await _wallets(world, 2)
    await _update_org(world, operator_daily_limit=3_000_000)

    error_of(await world.call("POST", _PATH, _allocate(wallets, "2", "1.000001")), 422, "operator_limit_exceeded")

    assert await _balances(world, wallets) == ["0.00", "0.00"]
    assert (await world.ok("POST", _PATH, _allocate(wallets, "2", "1")))["status"] == "confirmed"
    await _update_org(world, operator_daily_limit=UNLIMITED)


async def test_paused_organisation_funds_no_batch(own_world: ServiceWorld) -> None:
    world = own_world
    wallets = await _wallets(world, 2)
    await _update_org(world, paused=True)

    error_of(await world.call("POST", _PATH, _allocate(wallets, "1", "1")), 422, "org_paused")


async def test_only_operators_and_admins_fund_batches(world: ServiceWorld) -> None:
    [wallet] = await _wallets(world, 1)
    body = _allocate([wallet], "1")

    for key in (world.key("viewer"), world.key("agent", wallet["wallet_id"])):
        error_of(await world.call("POST", _PATH, body, key=key), 403, "insufficient_permissions")
    assert (await world.ok("POST", _PATH, body, key=world.key("operator")))["status"] == "confirmed"


async def test_batches_and_fundings_of_the_same_wallets_at_once_all_happen(world: ServiceWorld) -> None:
    wallets = await _wallets(world, 3)
    batches = [_allocate(list(order), "1", "2", "3") for order in (wallets, wallets[::-1], wallets[1:] + wallets[:1])]
    path = f"/v1/wallets/{wallets[0]['wallet_id']}/fund"

    answers = await asyncio.gather(
        *(world.call("POST", _PATH, body) for body in batches), world.call("POST", path, {"amount": "4"})
    )

    assert [one.status_code for one in answers] == [200] * 4, [one.text for one in answers]
    await world.catch_up()
    assert await _balances(world, wallets) == ["11.00", "5.00", "6.00"]


async def test_repetition_of_a_batch_gets_its_answer_and_moves_nothing_more(world: ServiceWorld) -> None:
    wallets, key = await _wallets(world, 2), {"Idempotency-Key": "batch"}
    body = _allocate(wallets, "1", "2")

    first = await world.call("POST", _PATH, body, headers=key)
    again = await world.call("POST", _PATH, _allocate(wallets, "1.00", "2.0"), headers=key)

    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    other = await world.call("POST", _PATH, _allocate(wallets, "1", "3"), headers=key)
    error_of(other, 409, "idempotency_conflict")
    assert await _balances(world, wallets) == ["1.00", "2.00"]


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_interrupted_batch_continues_under_its_key(own_world: ServiceWorld, lost: str) -> None:
    world = own_world
    wallets, key = await _wallets(world, 2), {"Idempotency-Key": "cut"}
    body = _allocate(wallets, "1", "2")
    if lost == "request":
        world.line.lose_requests = lambda method: method == "sendTransaction"
    else:
        world.line.lose_answers = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", _PATH, body, headers=key), 503, "chain_unavailable")
    world.line.mend()

    answer = await world.ok("POST", _PATH, body, headers=key)

    assert [one["usdc_balance"] for one in answer["funded"]] == ["1.00", "2.00"]
    for wallet, told in zip(wallets, answer["funded"], strict=True):
        assert [row["tx_id"] for row in await _fundings(world, wallet)] == [told["tx_id"]]
    assert world.service.db.read_now(pending_attempts) == []


async def test_restart_sends_a_batch_that_was_only_stored(own_world: ServiceWorld) -> None:
    world = own_world
    wallets, key = await _wallets(world, 2), {"Idempotency-Key": "killed"}
    body = _allocate(wallets, "1", "2")
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", _PATH, body, headers=key), 503, "chain_unavailable")

    await world.restart()
    async with asyncio.timeout(30):
        while world.service.db.read_now(pending_attempts):
            await world.service.part(Recovery).recover()

    assert await _balances(world, wallets) == ["1.00", "2.00"]
    assert (await world.ok("POST", _PATH, body, headers=key))["status"] == "confirmed"
    assert await _balances(world, wallets) == ["1.00", "2.00"]
