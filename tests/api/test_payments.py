"""Payments that go through, wait, or are refused by something other than a rule."""

import asyncio
import hashlib
from typing import Any

import pytest
from based58 import b58decode
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from app.chain.records import SimulationResult
from app.submission.plan import SimulationFailedError
from app.submission.program_errors import business_error
from tests.support.http import PATIENCE
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "POST /v1/payments",
    "CreatePayment(walletId, to, amount, memo)",
    "WalletDetail(last_transaction_at)",
    "Payment(tx_id, id, wallet_id, recipient, amount, currency, status, tx_signature, on_chain_slot)",
    "Payment(memo)",
)
async def test_payment_answers_with_the_contract_and_lands_on_the_chain(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(funds="10"), await world.payee()

    paid = (await world.pay(wallet, to, "1.25", body={"memo": "order 7"})).json()

    assert paid["wallet_id"] == wallet["wallet_id"]
    assert (paid["recipient"], paid["amount"], paid["currency"]) == (to, "1.25", "USDC")
    assert (paid["status"], paid["policy_triggered"], paid["memo"]) == ("confirmed", False, "order 7")
    assert paid["tx_id"].startswith("tx_")
    landed = await world.service.chain.call(
        "getTransaction", [paid["tx_signature"], {"commitment": "confirmed", "encoding": "base64"}]
    )
    assert landed["meta"]["err"] is None
    assert landed["slot"] == paid["on_chain_slot"]
    assert await world.balance(to) == 1_250_000
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert shown["usdc_balance"] == "8.75"
    assert shown["last_transaction_at"] is not None


@pytest.mark.proves(
    "GET /v1/payments/{tx_id}",
    "GET /v1/transactions/{tx_id}",
    "type payment",
    "Transaction(tx_id, id, wallet_id, recipient, amount, currency, status, tx_signature, on_chain_slot)",
    "Transaction(policy_triggered, memo, timestamp, type, policy_id, agent_attestation_hash)",
)
async def test_payment_is_readable_as_payment_and_as_transaction(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    paid = (await world.pay(wallet, to, "1")).json()

    payment = await world.ok("GET", f"/v1/payments/{paid['tx_id']}")
    transaction = await world.ok("GET", f"/v1/transactions/{paid['tx_id']}")

    assert payment == transaction
    assert paid.items() <= payment.items()
    assert payment["type"] == "payment"
    assert payment["policy_id"] == "pol_permissive"
    assert payment["agent_attestation_hash"] is None
    assert paid["tx_signature"] in payment["explorer_url_1"]
    assert paid["tx_signature"] in payment["explorer_url_2"]


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/pay",
    "PayFromWallet(to, amount)",
    "QuickPayment(tx_id, id, wallet_id, recipient, amount, currency, status, tx_signature, on_chain_slot)",
    "QuickPayment(policy_triggered, memo, timestamp)",
)
async def test_quickstart_shape_pays_too(world: ServiceWorld) -> None:
    policy = await world.ok(
        "POST", "/v1/policies", {"name": "Quick", "max_per_tx": "5", "velocity_cap": 10, "allowed_recipients": []}
    )
    made = await world.ok(
        "POST", "/v1/wallets", {"agent_id": "quick", "label": "Quick", "owner_org": "test", "policy_id": policy["id"]}
    )
    funded = await world.ok("POST", f"/v1/wallets/{made['id']}/fund", {"amount": "5", "currency": "USDC"})
    paid = await world.ok(
        "POST",
        f"/v1/wallets/{made['id']}/pay",
        {"to": await world.payee(), "amount": "1.00", "currency": "USDC", "memo": "hello"},
    )

    assert (made["id"], made["usdc_balance"]) == (made["wallet_id"], "0.00")
    assert (funded["wallet_id"], funded["usdc_balance"]) == (made["id"], "5.00")
    assert paid["signature"] == paid["tx_signature"]
    assert (paid["status"], type(paid["on_chain_slot"])) == ("confirmed", int)


@pytest.mark.proves("Transaction(agent_attestation_hash)")
async def test_session_signs_and_the_attestation_is_the_digest_of_what_it_signed(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    session = await world.session(wallet)
    agent = world.key("agent", wallet["wallet_id"])

    paid = (await world.pay(wallet, to, "1", session=session, key=agent)).json()

    shown = await world.ok("GET", f"/v1/transactions/{paid['tx_id']}", key=agent)
    landed = await world.service.chain.call(
        "getTransaction", [paid["tx_signature"], {"commitment": "confirmed", "encoding": "base58"}]
    )
    message = Transaction.from_bytes(b58decode(landed["transaction"][0].encode())).message
    assert shown["agent_attestation_hash"] == f"sha256:{hashlib.sha256(bytes(message)).hexdigest()}"


async def test_recipient_without_a_usdc_account_gets_one(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), str(Keypair().pubkey())

    paid = (await world.pay(wallet, to, "2")).json()

    assert paid["status"] == "confirmed", paid
    assert await world.balance(to) == 2_000_000
    assert (await world.ok("GET", f"/v1/payments/{paid['tx_id']}"))["status"] == "confirmed"


@pytest.mark.proves("Limits: Token accounts created for recipients")
async def test_opened_accounts_are_limited_per_wallet_and_day(world: ServiceWorld) -> None:
    limit = world.service.settings.token_accounts_per_day
    wallet = await world.wallet()
    for _ in range(limit):
        assert (await world.pay(wallet, str(Keypair().pubkey()), "0.1")).status_code == 200

    error_of(await world.pay(wallet, str(Keypair().pubkey()), "0.1"), 400, "invalid_recipient")

    assert (await world.pay(wallet, await world.payee(), "0.1")).json()["status"] == "confirmed"


@pytest.mark.proves("POST /v1/payments", "CreatePayment(to)", "Payment(recipient)")
async def test_wallet_pays_a_wallet_by_its_id(world: ServiceWorld) -> None:
    payer, payee = await world.wallet(), await world.wallet(funds=None)

    paid = (await world.pay(payer, payee["wallet_id"], "3")).json()

    assert paid["recipient"] == payee["chain_address"]
    await world.catch_up()
    assert await world.balance(payee["chain_address"]) == 3_000_000


@pytest.mark.proves("error wallet_insufficient_balance")
async def test_insufficient_balance_leaves_no_row(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="1")

    error_of(await world.pay(wallet, await world.payee(), "1.000001"), 422, "wallet_insufficient_balance")

    rows = (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions"))["data"]
    assert [row["type"] for row in rows] == ["funding"]


@pytest.mark.proves("Wallets: any to frozen", "rule frozen", "error wallet_frozen")
async def test_frozen_wallet_pays_nothing_and_leaves_no_row(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"

    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")

    rows = (await world.ok("GET", f"{path}/transactions"))["data"]
    assert [row["type"] for row in rows] == ["funding"]
    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


@pytest.mark.proves("error wallet_archived")
async def test_archived_wallet_pays_nothing(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    await world.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}")

    error_of(await world.pay(wallet, await world.payee(), "1"), 422, "wallet_archived")


@pytest.mark.proves("error wallet_archived")
async def test_archived_wallet_receives_nothing(world: ServiceWorld) -> None:
    wallet, archived = await world.wallet(), await world.wallet(funds=None)
    await world.ok("DELETE", f"/v1/wallets/{archived['wallet_id']}")
    escrow = {"fromWallet": wallet["wallet_id"], "amount": "1", "currency": "USDC", "taskDescription": "Work"}

    answers = [
        await world.pay(wallet, archived["wallet_id"], "1"),
        await world.call("POST", "/v1/payments/a2a", {**escrow, "toWallet": archived["wallet_id"]}),
        await world.call("POST", "/v1/payments/a2a", {**escrow, "toWallet": archived["chain_address"]}),
    ]

    for answer in answers:
        error = error_of(answer, 422, "wallet_archived")
        assert error["message"] == "The receiving wallet is archived. Pay another wallet."


async def test_payment_to_itself_is_refused(world: ServiceWorld) -> None:
    wallet = await world.wallet()

    error = error_of(await world.pay(wallet, wallet["chain_address"], "1"), 400, "invalid_recipient")

    assert error["message"] == "to: A wallet cannot pay itself."


async def test_account_that_another_payment_opens_meanwhile_is_paid(own_world: ServiceWorld) -> None:
    world, owner = own_world, Keypair().pubkey()
    first, second = await world.wallet(), await world.wallet()
    go_on = asyncio.Event()

    # Given a payment whose simulation misses the payee's account, and another that opens it before it looks
    world.line.hold = lambda method: go_on.wait() if method == "getMultipleAccounts" else None
    with world.line.asked() as methods:
        waiting = asyncio.create_task(world.pay(first, str(owner), "1"))
    async with asyncio.timeout(PATIENCE):
        while "getMultipleAccounts" not in methods:  # noqa: ASYNC110 - the line only notes what passed
            await asyncio.sleep(0.001)
    world.line.hold = lambda _method: None
    assert (await world.pay(second, str(owner), "1")).json()["status"] == "confirmed"
    go_on.set()

    assert (await waiting).json()["status"] == "confirmed"
    assert await world.balance(str(owner)) == 2_000_000


async def test_token_account_mint_and_program_are_no_recipients(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    addresses = world.service.addresses
    tokens = addresses.token_account(world.service.signers.fee_payer.pubkey())
    payer = world.service.signers.fee_payer.pubkey()
    await world.land([world.build.create_token_account(payer=payer, owner=payer)])

    for nobody in (tokens, addresses.mint, addresses.program_id):
        error_of(await world.pay(wallet, str(nobody), "1"), 400, "invalid_recipient")


@pytest.mark.proves("Limits: Change of a policy or a wallet's policy")
async def test_payment_under_a_policy_that_was_just_switched_uses_the_new_one(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    strict = await world.policy(maxPerTx="1", allowedRecipients=[to])
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"policyId": strict["policy_id"]})

    error = error_of(await world.pay(wallet, to, "2"), 402, "policy_violation")

    assert error["policy_id"] == strict["policy_id"]
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


@pytest.mark.proves(
    "Transactions: new to pending",
    "Transactions: pending to confirmed",
    "event transaction.pending",
    "event transaction.completed",
)
async def test_events_report_a_payment_as_pending_and_completed(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    paid = (await world.pay(wallet, to, "1")).json()

    events = (await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}"))["data"]

    kinds = [one["event"] for one in events]
    assert sorted(kinds) == ["transaction.completed", "transaction.pending", "wallet.created", "wallet.funded"]
    completed = next(one for one in events if one["event"] == "transaction.completed")
    expected: dict[str, Any] = {
        "wallet_id": wallet["wallet_id"],
        "tx_id": paid["tx_id"],
        "tx_signature": paid["tx_signature"],
        "amount": "1.00",
        "recipient": to,
        "policy_triggered": False,
        "on_chain_slot": paid["on_chain_slot"],
    }
    assert expected.items() <= completed.items()
    assert len({one["event_id"] for one in events}) == 4


async def test_payments_of_one_wallet_at_once_never_break_its_policy(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerDay="5")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()

    answers = await asyncio.gather(*(world.pay(wallet, to, "1") for _ in range(12)))

    assert sorted(one.status_code for one in answers) == [200] * 5 + [402] * 7
    assert await world.balance(to) == 5_000_000


@pytest.mark.proves("Transaction(policy_id)")
async def test_policy_switched_past_the_service_is_noticed(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    strict = await world.policy(maxPerTx="1", allowedRecipients=[to], blockedCategories=["mixer"])
    found = world.policy_record(strict["policy_id"])
    before = world.wallet_record(wallet["wallet_id"])
    operator = world.service.signers.operator
    switch = world.build.update_wallet(
        operator=operator.pubkey(),
        vault=Pubkey.from_string(before.vault),
        policy=Pubkey.from_string(before.policy.address),
        new_policy=Pubkey.from_string(found.address),
    )
    assert (await world.land([switch], operator)).err is None

    error = error_of(await world.pay(wallet, to, "2"), 402, "policy_violation")

    assert error["policy_id"] == strict["policy_id"]
    assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"


async def test_explained_refusal_needs_no_further_requests(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(funds="1"), await world.payee()

    with world.line.asked() as methods:
        error_of(await world.pay(wallet, to, "2"), 422, "wallet_insufficient_balance")

    assert "simulateTransaction" in methods
    assert "getMultipleAccounts" not in methods


@pytest.mark.proves("error transaction_failed")
@pytest.mark.parametrize(
    ("err", "code"),
    [
        ({"InstructionError": [0, {"Custom": 17}]}, "transaction_failed"),
        ("InsufficientFundsForFee", "fee_payer_insufficient"),
        ({"InstructionError": [0, "ProgramFailedToComplete"]}, "chain_unavailable"),
        ("AlreadyProcessed", "chain_unavailable"),
        ({"InstructionError": [0, {"Custom": 6_999}]}, "transaction_failed"),
    ],
)
async def test_refusals_of_other_programs_and_of_the_chain_have_a_code(
    world: ServiceWorld, err: object, code: str
) -> None:
    logs = ["Program 11111111111111111111111111111111 failed: custom program error: 0x11"]
    refused = SimulationFailedError(SimulationResult(err=err, logs=logs, units=0, return_data=None, slot=1))

    assert business_error(world.service.codec, refused).code == code
