"""Allowances in the read models: granted and settled past the service, with what their delegates paid."""

import random
import secrets
from pathlib import Path

import pytest
import pytest_asyncio
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.core.identifiers import ALLOWANCE_EVENT_INNER_INDEX, allowance_id
from app.database import SqliteDatabase
from app.database.record_tables import insert_record
from app.projection.projector import Projector
from app.store.allowances import AllowanceRecord, allowance
from app.store.organisations import organisation
from app.store.read_tables import TransactionRecord
from app.store.schema import create_tables
from app.store.transactions import transactions
from app.store.wallets import wallet
from indexer import StoredEvent
from tests.projection.test_escrows import numbered
from tests.projection.test_projector import changes_of
from tests.support.allowances import USDC, Purse, grant, known, send, settle
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="payer")
async def _payer(world: ServiceWorld) -> Agent:
    """An agent whose policy permits allowances."""
    policy = await world.policy(allowAllowances=True, maxPerDay="60")
    return await agent(world, policy["policy_id"])


async def _told(world: ServiceWorld, purse: Purse) -> list[tuple[str, str, Json]]:
    found = (await world.ok("GET", "/v1/events?limit=100"))["data"]
    mine = [one for one in reversed(found) if one.get("allowance_id") == allowance_id(purse.address)]
    return [(one["event"], one["severity"], one) for one in mine]


@pytest.mark.proves("type payment", "type escrow_refund", "event allowance.granted", "event allowance.settled")
async def test_delegates_payment_is_seen_and_the_rest_comes_back(world: ServiceWorld, payer: Agent) -> None:
    before = world.wallet_record(payer.id).balance
    purse = await grant(world, payer, 5 * USDC, reference=b"reference of one")
    granted = await known(world, purse)

    assert (granted.status, granted.amount, granted.reference) == ("outstanding", 5 * USDC, b"reference of one".hex())
    assert world.wallet_record(payer.id).balance == before - 5 * USDC
    assert world.wallet_record(payer.id).allowance_counter == granted.counter + 1
    signature = await purse.pay(3 * USDC)
    settlement = await settle(world, purse)

    found = await known(world, purse)
    assert (found.status, found.spent, found.returned, found.due_at) == ("settled", 3 * USDC, 2 * USDC, None)
    assert (found.transfers, found.settlement_signature) == ([signature], settlement)
    assert world.wallet_record(payer.id).balance == before - 3 * USDC == await world.balance(payer.vault)
    assert await payer.rows() == [("escrow_refund", "2.00", "confirmed"), ("payment", "5.00", "confirmed")]
    shown = await world.ok("GET", f"/v1/payments/{found.tx_id}")
    assert (shown["recipient"], shown["type"], shown["tx_signature"]) == (purse.owner, "payment", found.signature)
    kinds = [(kind, severity) for kind, severity, _ in await _told(world, purse)]
    assert kinds == [("allowance.granted", "info"), ("allowance.settled", "info")]


@pytest.mark.proves("event allowance.discrepancy")
async def test_transfer_elsewhere_or_a_burn_is_a_critical_event(world: ServiceWorld, payer: Agent) -> None:
    elsewhere = world.service.addresses.token_account(Pubkey.from_string(await world.payee()))
    stray, burnt, given = [await grant(world, payer, 2 * USDC) for _ in range(3)]
    signature = await stray.pay(USDC, elsewhere)
    await stray.pay(USDC)
    await burnt.burn(USDC)
    # A donation to the token account changes nothing about what was spent.
    await world.localnet.mint_usdc(given.tokens, USDC)
    await given.pay(USDC)
    for purse in (stray, burnt, given):
        await settle(world, purse)

    found = [await known(world, purse) for purse in (stray, burnt, given)]
    assert [one.spent for one in found] == [2 * USDC, USDC, USDC]
    assert [one.returned for one in found] == [0, USDC, 2 * USDC]
    [*_, (kind, severity, payload)] = await _told(world, stray)
    assert (kind, severity) == ("allowance.discrepancy", "critical")
    assert (payload["seen"], payload["spent"], payload["arrived"]) == ("2.00", "2.00", "1.00")
    assert signature in payload["transfers"]
    [*_, (kind, _, payload)] = await _told(world, burnt)
    assert (kind, payload["seen"], payload["arrived"]) == ("allowance.discrepancy", "1.00", "0.00")
    assert [kind for kind, *_ in await _told(world, given)] == ["allowance.granted", "allowance.settled"]


async def test_diversion_hides_behind_no_other_payment(world: ServiceWorld, payer: Agent) -> None:
    # Given two allowances for one destination, of which one is diverted in the transaction that pays with the other
    diverted = await grant(world, payer, 2 * USDC)
    honest = await grant(world, payer, 2 * USDC, to=diverted.owner)
    elsewhere = world.service.addresses.token_account(Pubkey.from_string(await world.payee()))
    transfers = [diverted.transfer(2 * USDC, elsewhere), honest.transfer(2 * USDC, honest.destination)]
    await send(world, transfers, diverted.delegate, honest.delegate)
    # And one that is diverted along with a payment by the program
    covered = await grant(world, payer, 2 * USDC)
    wallet, owner = await world.fields(payer.vault), Pubkey.from_string(covered.owner)
    payment = world.build.execute_payment(
        vault=Pubkey.from_string(payer.vault),
        amount=2 * USDC,
        signer=payer.session_key.pubkey(),
        policy=wallet["policy"],
        destination=covered.destination,
        reference=secrets.token_bytes(16),
        allowlist=None,
        recipient=world.service.addresses.recipient(Pubkey.from_string(world.org), owner),
        budget=None,
    )
    await send(world, [covered.transfer(2 * USDC, elsewhere), payment], covered.delegate, payer.session_key)
    for purse in (diverted, honest, covered):
        await settle(world, purse)

    # Then what arrived counts once
    for purse in (diverted, honest, covered):
        await known(world, purse)
    told = [one for purse in (diverted, honest) for one in await _told(world, purse)]
    assert [payload["arrived"] for kind, _, payload in told if kind == "allowance.discrepancy"] == ["0.00"]
    [*_, (kind, _, payload)] = await _told(world, covered)
    assert (kind, payload["seen"], payload["arrived"]) == ("allowance.discrepancy", "2.00", "0.00")


async def test_delegate_that_pays_within_other_transactions_is_seen(world: ServiceWorld, payer: Agent) -> None:
    purse = await grant(world, payer, 3 * USDC)
    operator = world.service.signers.operator
    account = await world.fields(purse.address)
    settling = world.build.settle_allowance(
        OpenAllowance(purse.address, account["vault"], account["payer"]), signer=operator.pubkey()
    )
    transfers = [purse.transfer(USDC, purse.destination), purse.transfer(USDC // 2, purse.destination)]
    both = await send(world, [*transfers, settling], purse.delegate, operator)  # type: ignore[arg-type]

    found = await known(world, purse)
    assert (found.spent, found.transfers) == (3 * USDC // 2, [both])
    assert "allowance.discrepancy" not in [kind for kind, *_ in await _told(world, purse)]


@pytest.mark.proves("Approval(type)")
async def test_approval_of_an_allowance_serves_no_payment(world: ServiceWorld) -> None:
    policy = await world.policy(allowAllowances=True, requireCoSign="1")
    paying = await agent(world, policy["policy_id"])
    owner, vault = await world.payee(), Pubkey.from_string(paying.vault)
    signers = world.service.signers
    reference = secrets.token_bytes(16)
    approving = world.build.approve_payment(
        payer=signers.fee_payer_address,
        operator=signers.operator_address,
        vault=vault,
        policy=(await world.fields(vault))["policy"],
        reference=reference,
        recipient=Pubkey.from_string(owner),
        amount=2 * USDC,
        expires_at=world.service.clock.now() + 600,
        kind="Allowance",
    )
    assert (await world.land([approving], signers.operator)).err is None
    await world.catch_up()

    refused = await paying.call(
        "POST",
        "/v1/payments",
        {"walletId": paying.id, "to": owner, "amount": "2", "currency": "USDC"},
    )

    assert refused.status_code == 402
    address = world.service.addresses.approval(vault, reference)
    assert refused.json()["error"]["approval_id"] is not None
    assert (await world.fields(address))["kind"] == 2


async def test_rows_in_any_order_and_twice_give_the_same(world: ServiceWorld, payer: Agent, tmp_path: Path) -> None:
    purse = await grant(world, payer, 4 * USDC)
    await purse.pay(USDC)
    await settle(world, purse)
    expected = await known(world, purse)
    rows = [one for one in await world.service.indexer.changes(0, 10_000) if one.org == world.org]
    about = [one for one in rows if one.data.get("allowance") == str(purse.address)]
    assert [one.name for one in about] == ["AllowanceGranted", "AllowanceSettled", "AllowanceRead"]
    assert about[0].inner == ALLOWANCE_EVENT_INNER_INDEX
    own = world.service.db.read_now(lambda conn: organisation(conn, world.org))
    assert own is not None

    async def projected(order: list[StoredEvent]) -> tuple[AllowanceRecord | None, list[TransactionRecord], int]:
        db = SqliteDatabase(tmp_path / f"{secrets.token_hex(4)}.db", create_tables)
        await db.write(lambda conn: insert_record(conn, own))
        await Projector(db, changes_of(numbered(order))).catch_up()
        found = db.read_now(lambda conn: allowance(conn, world.org, expected.allowance_id))
        listed = db.read_now(lambda conn: transactions(conn, world.org, limit=100)).data
        known = db.read_now(lambda conn: wallet(conn, world.org, payer.id, 0))
        db.close()
        assert known is not None
        return found, sorted(listed, key=lambda one: one.tx_id), known.balance

    first = await projected(rows)
    others = [one for one in rows if one not in about]
    drawn = random.Random(5)
    for _ in range(4):
        drawn.shuffle(about)
        assert await projected([*others, *about, *about]) == first
    assert first[0] is not None
    assert (first[0].spent, first[0].transfers) == (expected.spent, expected.transfers)
