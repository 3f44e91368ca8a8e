"""Wallets from creation to archive, and the money between them and the reserve."""

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from app.submission.recovery import Recovery
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "POST /v1/wallets",
    "GET /v1/wallets/{wallet_id}",
    "Wallets: new to active",
    "CreateWallet(label, policyId, tags)",
    "Wallet(wallet_id, id, usdc_balance, policy, created_at)",
    "AttachedPolicy(policy_id, id, name, max_per_tx, max_per_day, max_per_month)",
)
async def test_new_wallet_answers_with_the_contract(world: ServiceWorld) -> None:
    made = await world.ok(
        "POST",
        "/v1/wallets",
        {"agentId": "contract", "label": "Contract", "policyId": "pol_conservative", "tags": ["a", "b"]},
    )

    assert made["wallet_id"].startswith("wal_")
    assert made["id"] == made["wallet_id"]
    assert (made["agent_id"], made["label"], made["tags"]) == ("contract", "Contract", ["a", "b"])
    assert (made["usdc_balance"], made["status"]) == ("0.00", "active")
    assert made["policy"] == {
        "policy_id": "pol_conservative",
        "id": "pol_conservative",
        "name": "Conservative",
        "max_per_tx": "10.00",
        "max_per_day": "50.00",
        "max_per_month": "500.00",
    }
    assert datetime.fromisoformat(made["created_at"]).tzinfo is not None
    shown = await world.ok("GET", f"/v1/wallets/{made['wallet_id']}")
    assert made.items() <= shown.items()
    assert set(shown) - set(made) == {"updated_at", "last_transaction_at"}


@pytest.mark.proves("Conventions: Wallet address", "Wallet(chain_address)")
async def test_address_follows_from_organisation_and_agent(world: ServiceWorld) -> None:
    made = await world.wallet(agentId="derived", funds=None)

    assert made["chain_address"] == str(world.service.addresses.vault(Pubkey.from_string(world.org), "derived"))


@pytest.mark.proves("error wallet_agent_id_conflict", "CreateWallet(agentId)", "Wallet(agent_id)")
async def test_agent_id_is_given_once_also_after_archiving(world: ServiceWorld) -> None:
    made = await world.wallet(agentId="single", funds=None)
    body = {"agentId": "single", "label": "Again", "policyId": "pol_moderate"}
    error_of(await world.call("POST", "/v1/wallets", body), 409, "wallet_agent_id_conflict")

    archived = await world.ok("DELETE", f"/v1/wallets/{made['wallet_id']}")

    assert archived["status"] == "archived"
    error_of(await world.call("POST", "/v1/wallets", body), 409, "wallet_agent_id_conflict")


async def test_parallel_creations_for_one_agent_id_make_one_wallet(world: ServiceWorld) -> None:
    body = {"agentId": "crowded", "label": "Crowded", "policyId": "pol_moderate"}

    answers = await asyncio.gather(*(world.call("POST", "/v1/wallets", body) for _ in range(8)))

    refused = [one for one in answers if one.status_code != 200]
    assert len(refused) == 7
    for one in refused:
        error_of(one, 409, "wallet_agent_id_conflict")


@pytest.mark.proves("POST /v1/wallets", "CreateWallet(policyId)")
async def test_unknown_policy_creates_nothing(world: ServiceWorld) -> None:
    body = {"agentId": "nobody", "label": "Nobody", "policyId": "pol_unknown"}

    error_of(await world.call("POST", "/v1/wallets", body), 404, "policy_not_found")

    assert (await world.wallet(agentId="nobody", funds=None))["agent_id"] == "nobody"


@pytest.mark.proves(
    "POST /v1/wallets/{wallet_id}/fund",
    "POST /v1/wallets/{wallet_id}/withdraw",
    "Wallets: active to unfunded",
    "type funding",
    "type withdrawal",
    "FundWallet(amount, currency)",
    "WithdrawFromWallet(amount)",
    "Funded(tx_id, tx_signature, status, funded_amount, usdc_balance, org_balance_remaining)",
    "Withdrawn(wallet_id, id, chain_address, agent_id, label, usdc_balance, policy, budget_id, warnings)",
    "Withdrawn(held_amount, status, tags, created_at, updated_at, last_transaction_at, transaction_status, tx_id)",
    "Withdrawn(tx_signature, withdrawn_amount, org_balance_remaining)",
)
async def test_funding_and_withdrawal_move_money_between_reserve_and_wallet(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    funded = await world.ok("POST", f"{path}/fund", {"amount": "20.5", "currency": "USDC"})
    back = await world.ok("POST", f"{path}/withdraw", {"amount": "0.5"})

    assert (funded["funded_amount"], funded["usdc_balance"], funded["status"]) == ("20.50", "20.50", "confirmed")
    assert (back["withdrawn_amount"], back["usdc_balance"]) == ("0.50", "20.00")
    before, after = float(funded["org_balance_remaining"]), float(back["org_balance_remaining"])
    assert after - before == pytest.approx(0.5)
    emptied = await world.ok("POST", f"{path}/withdraw", {"amount": "all"})
    assert (emptied["withdrawn_amount"], emptied["usdc_balance"]) == ("20.00", "0.00")
    assert emptied["status"] == "unfunded"
    rows = (await world.ok("GET", f"{path}/transactions"))["data"]
    assert [(row["type"], row["amount"], row["status"]) for row in rows] == [
        ("withdrawal", "20.00", "confirmed"),
        ("withdrawal", "0.50", "confirmed"),
        ("funding", "20.50", "confirmed"),
    ]


@pytest.mark.proves("POST /v1/wallets/{wallet_id}/fund", "error org_insufficient_balance")
async def test_funding_beyond_the_reserve_is_refused(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    error_of(await world.call("POST", f"{path}/fund", {"amount": "99999999"}), 422, "org_insufficient_balance")

    assert (await world.ok("GET", path))["usdc_balance"] == "0.00"


@pytest.mark.proves("error withdrawal_exceeds_balance", "WithdrawFromWallet(amount)")
async def test_withdrawal_beyond_the_balance_is_refused(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="1")
    path = f"/v1/wallets/{wallet['wallet_id']}/withdraw"

    error_of(await world.call("POST", path, {"amount": "1.000001"}), 422, "withdrawal_exceeds_balance")
    await world.ok("POST", path, {"amount": "1"})
    error = error_of(await world.call("POST", path, {"amount": "all"}), 422, "withdrawal_exceeds_balance")
    assert error["message"] == "There is nothing to withdraw: the balance is zero."


@pytest.mark.proves("POST /v1/wallets/{wallet_id}/withdraw")
async def test_frozen_wallet_can_be_emptied(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="2")
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})

    emptied = await world.ok("POST", f"{path}/withdraw", {"amount": "all"})

    assert (emptied["usdc_balance"], emptied["status"]) == ("0.00", "frozen")


@pytest.mark.proves(
    "PATCH /v1/wallets/{wallet_id}",
    "UpdateWallet(label, policyId, tags, status)",
    "Wallet(label, tags)",
    "WalletDetail(updated_at)",
)
async def test_update_changes_what_is_given_and_nothing_else(world: ServiceWorld) -> None:
    wallet = await world.wallet(tags=["old"], funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"

    renamed = await world.ok("PATCH", path, {"label": "New"})
    assert (renamed["label"], renamed["tags"], renamed["policy"]["policy_id"]) == ("New", ["old"], "pol_permissive")
    moved = await world.ok("PATCH", path, {"policyId": "pol_conservative", "tags": [], "status": "frozen"})

    assert (moved["label"], moved["tags"]) == ("New", [])
    assert (moved["policy"]["policy_id"], moved["status"]) == ("pol_conservative", "frozen")
    assert moved["updated_at"] >= renamed["updated_at"]


async def test_freezing_a_frozen_wallet_changes_nothing(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})
    signatures = await world.signatures(wallet["chain_address"])

    assert (await world.ok("PATCH", path, {"status": "frozen"}))["status"] == "frozen"

    assert await world.signatures(wallet["chain_address"]) == signatures


@pytest.mark.proves("PATCH /v1/wallets/{wallet_id}", "Wallets: frozen to active")
async def test_only_an_admin_lifts_a_freeze(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path, operator = f"/v1/wallets/{wallet['wallet_id']}", world.key("operator")
    await world.ok("PATCH", path, {"status": "frozen"}, key=operator)

    error_of(await world.call("PATCH", path, {"status": "active"}, key=operator), 403, "insufficient_permissions")

    assert (await world.ok("PATCH", path, {"status": "active"}))["status"] == "active"


@pytest.mark.proves(
    "DELETE /v1/wallets/{wallet_id}", "Wallets: any to archived", "error wallet_archived", "error wallet_not_empty"
)
async def test_wallet_with_money_is_not_archived(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds="0.000001")
    path = f"/v1/wallets/{wallet['wallet_id']}"

    error_of(await world.call("DELETE", path), 422, "wallet_not_empty")

    await world.ok("POST", f"{path}/withdraw", {"amount": "all"})
    assert (await world.ok("DELETE", path))["status"] == "archived"
    error_of(await world.call("DELETE", path), 422, "wallet_archived")
    for method, action, body in (
        ("POST", "/fund", {"amount": "1"}),
        ("POST", "/rotate-token", {}),
        ("PATCH", "", {"label": "Back"}),
    ):
        error_of(await world.call(method, path + action, body), 422, "wallet_archived")
    assert (await world.ok("GET", path))["status"] == "archived"
    assert len((await world.ok("GET", f"{path}/transactions"))["data"]) == 2


@pytest.mark.proves("GET /v1/wallets", "GET /v1/wallets(tags)")
async def test_list_filters_by_tags_and_status_and_pages(world: ServiceWorld) -> None:
    for number in range(5):
        await world.wallet(tags=["fleet", f"n{number % 2}"], funds=None, label=f"Fleet {number}")
    archived = await world.wallet(tags=["fleet"], funds=None)
    await world.ok("DELETE", f"/v1/wallets/{archived['wallet_id']}")

    seen, cursor = [], ""
    while True:
        page = await world.ok("GET", f"/v1/wallets?tags=fleet&limit=2{cursor}")
        seen += [one["label"] for one in page["data"]]
        assert len(page["data"]) <= 2
        if not page["has_more"]:
            assert page["next_cursor"] is None
            break
        cursor = f"&cursor={page['next_cursor']}"

    assert seen == [f"Fleet {number}" for number in reversed(range(5))]
    both = (await world.ok("GET", "/v1/wallets?tags=fleet,n1"))["data"]
    assert [one["label"] for one in both] == ["Fleet 3", "Fleet 1"]
    assert (await world.ok("GET", "/v1/wallets?tags=fleet&status=frozen"))["data"] == []
    gone = (await world.ok("GET", "/v1/wallets?tags=fleet&status=archived"))["data"]
    assert [one["wallet_id"] for one in gone] == [archived["wallet_id"]]


@pytest.mark.proves("error wallet_not_found", "error transaction_not_found", "Authentication: Organisations")
async def test_foreign_wallet_does_not_exist(world: ServiceWorld) -> None:
    neighbour = await world.organisation("neighbour")
    theirs = world.key("admin", org=neighbour)
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    paid = (await world.pay(wallet, to, "1")).json()

    for method, action, body in (
        ("GET", "", None),
        ("PATCH", "", {"label": "Mine"}),
        ("DELETE", "", {}),
        ("POST", "/fund", {"amount": "1"}),
        ("POST", "/withdraw", {"amount": "all"}),
        ("POST", "/rotate-token", {}),
        ("POST", "/pay", {"to": to, "amount": "1", "currency": "USDC"}),
        ("GET", "/transactions", None),
    ):
        error_of(await world.call(method, path + action, body, key=theirs), 404, "wallet_not_found")
    error_of(await world.pay(wallet, to, "1", key=theirs), 404, "wallet_not_found")
    error_of(await world.call("GET", f"/v1/payments/{paid['tx_id']}", key=theirs), 404, "transaction_not_found")
    assert (await world.ok("GET", "/v1/transactions", key=theirs))["data"] == []
    assert (await world.ok("GET", "/v1/wallets", key=theirs))["data"] == []


@pytest.mark.proves("POST /v1/wallets", "Limits: Creation of a wallet, on the embedded chain")
async def test_provisioning_takes_less_than_a_second(world: ServiceWorld) -> None:
    began = time.monotonic()
    await world.wallet(funds=None)

    assert time.monotonic() - began < 1.0


@pytest.mark.proves("error operator_limit_exceeded")
async def test_funding_beyond_the_operators_daily_limit_is_refused(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path, operator_daily_limit="10.00") as world:
        wallet = await world.wallet(funds="10")
        path = f"/v1/wallets/{wallet['wallet_id']}"

        error_of(await world.call("POST", f"{path}/fund", {"amount": "0.01"}), 422, "operator_limit_exceeded")

        assert (await world.ok("GET", path))["usdc_balance"] == "10.00"


@pytest.mark.proves("Withdrawn(transaction_status)")
async def test_withdrawal_that_is_not_confirmed_in_time_says_so(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds="5")
    await world.restart(confirm_timeout=0.3)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    world.line.lose_requests = lambda method: method == "getSignatureStatuses"

    pending = await world.ok("POST", f"{path}/withdraw", {"amount": "2"})

    assert (pending["transaction_status"], pending["withdrawn_amount"]) == ("pending", "2.00")
    world.line.mend()
    await world.service.part(Recovery).recover()
    done = await world.ok("POST", f"{path}/withdraw", {"amount": "all"})
    assert (done["transaction_status"], done["withdrawn_amount"]) == ("confirmed", "3.00")


@pytest.mark.proves("Quickstart: Create a wallet", "CreateWallet(ownerOrg)")
async def test_owner_is_the_organisation_of_the_key_or_refused(world: ServiceWorld) -> None:
    for number, owner in enumerate(("test", world.org)):
        await world.wallet(agentId=f"owned-{number}", owner_org=owner, funds=None)
    body = {"agentId": "foreign", "label": "Foreign", "policyId": "pol_moderate", "ownerOrg": "somebody-else"}

    error_of(await world.call("POST", "/v1/wallets", body), 400, "invalid_request")

    assert (await world.wallet(agentId="foreign", funds=None))["agent_id"] == "foreign"


@pytest.mark.proves("Limits: tags")
async def test_tags_are_few_short_and_without_commas(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    many = ",".join(str(number) for number in range(33))

    error_of(await world.call("GET", f"/v1/wallets?tags={many}"), 400, "invalid_request")
    error_of(await world.call("GET", f"/v1/wallets?tags={'x' * 65}"), 400, "invalid_request")
    patch = await world.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"tags": ["a,b"]})
    error_of(patch, 400, "invalid_request")

    assert (await world.ok("GET", f"/v1/wallets?tags={many[: many.rindex(',')]}"))["data"] == []


@pytest.mark.proves("Organization(authority_attaches)")
async def test_only_admins_attach_policies_where_the_authority_must(own_world: ServiceWorld) -> None:
    # Given an organisation that lets only its authority attach policies
    world = own_world
    authority = world.service.signers.require_authority()
    wallet, policy = await world.wallet(), await world.policy(maxPerTx="5")
    await world.land([await world.org_update(authority.pubkey(), authority_attaches=True)], authority)
    await world.catch_up()
    assert (await world.ok("GET", "/v1/organization"))["authority_attaches"]

    # Then an operator's key neither makes wallets nor attaches policies, and an admin's does
    operator, path = world.key("operator"), f"/v1/wallets/{wallet['wallet_id']}"
    creation = {"agentId": "flagged", "label": "Flagged", "policyId": policy["policy_id"]}
    attaching = {"policyId": policy["policy_id"]}
    error_of(await world.call("POST", "/v1/wallets", creation, key=operator), 403, "insufficient_permissions")
    error_of(await world.call("PATCH", path, attaching, key=operator), 403, "insufficient_permissions")
    assert (await world.ok("POST", "/v1/wallets", creation))["policy"]["policy_id"] == policy["policy_id"]
    assert (await world.ok("PATCH", path, attaching))["policy"]["policy_id"] == policy["policy_id"]
