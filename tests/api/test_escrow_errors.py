"""Bad input for escrows: each gets a clear error and leaves the escrow unchanged."""

import pytest
import pytest_asyncio
from solders.keypair import Keypair

from tests.support.escrows import A2A, OUTPUT, Agent, agent, of, shows_output, signs_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_REASON = {"reason": "late"}
_UNKNOWN = {"escrow_id": "escrow_4vJ9JU1bJJE96FWSJKvHsm"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="sides")
async def _sides(world: ServiceWorld) -> tuple[Agent, Agent]:
    """Two agents whose requests about escrows are refused."""
    return await agent(world, funds="900"), await agent(world)


async def _unchanged(world: ServiceWorld, escrow: Json) -> None:
    assert await world.ok("GET", of(escrow)) == escrow


# Creation


@pytest.mark.proves(
    "Limits: Timeout of an escrow", "Limits: Currency", "Limits: taskDescription, reason", "CreateEscrow(currency)"
)
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"amount": "0"}, 400, "invalid_amount"),
        ({"amount": "-1"}, 400, "invalid_amount"),
        ({"amount": 5}, 400, "invalid_amount"),
        ({"amount": "0.0000001"}, 400, "invalid_amount"),
        ({"amount": "950"}, 422, "wallet_insufficient_balance"),
        ({"currency": "EURC"}, 400, "invalid_request"),
        ({"taskDescription": ""}, 400, "invalid_request"),
        ({"taskDescription": "x" * 2_001}, 400, "invalid_request"),
        ({"taskDescription": None}, 400, "invalid_request"),
        ({"timeoutSeconds": 59}, 400, "invalid_request"),
        ({"timeoutSeconds": 2_592_001}, 400, "invalid_request"),
        ({"timeoutSeconds": "60"}, 400, "invalid_request"),
        ({"expectedOutputHash": OUTPUT}, 400, "invalid_request"),
        ({"expectedOutputHash": "sha256:12"}, 400, "invalid_request"),
        ({"proofTypes": []}, 400, "invalid_request"),
        ({"proofTypes": ["oracle"]}, 400, "invalid_request"),
        ({"toWallet": "shop.example"}, 400, "invalid_recipient"),
        ({"toWallet": "wal_unknown"}, 400, "invalid_recipient"),
        ({"toWallet": "wal_4vJ9JU1bJJE96FWSJKvHsm"}, 400, "invalid_recipient"),
        ({"toWallet": "not an address"}, 400, "invalid_recipient"),
        ({"toWallet": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"}, 400, "invalid_recipient"),
        ({"fromWallet": "wal_4vJ9JU1bJJE96FWSJKvHsm"}, 404, "wallet_not_found"),
        ({"colour": "blue"}, 400, "invalid_request"),
    ],
    ids=str,
)
async def test_malformed_terms_lock_nothing(
    world: ServiceWorld, sides: tuple[Agent, Agent], fields: Json, status: int, code: str
) -> None:
    paying, receiving = sides

    error_of(await world.call("POST", A2A, {**terms(paying, receiving), **fields}), status, code)

    assert (await world.ok("GET", f"{A2A}?walletId={paying.id}&status=pending"))["data"] == []


@pytest.mark.proves("Limits: Timeout of an escrow")
async def test_limits_of_the_terms_are_accepted(sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    shortest = await paying.lock(receiving, "0.000001", timeoutSeconds=60, taskDescription="x" * 2_000)
    longest = await paying.lock(receiving, "1", timeoutSeconds=2_592_000, proofTypes=["output_hash", "output_hash"])

    assert (shortest["amount"], len(shortest["task_description"])) == ("0.000001", 2_000)
    assert longest["proof_types"] == ["output_hash"]


async def test_receivers_that_cannot_be_paid_are_refused(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, _ = sides
    other_org = await world.organisation("elsewhere")
    operator = world.key("operator", org=other_org)
    foreign = await world.ok(
        "POST", "/v1/wallets", {"agentId": "a", "label": "A", "policyId": "pol_permissive"}, key=operator
    )
    frozen, archived = await world.wallet(funds=None), await world.wallet(funds=None)
    await world.ok("PATCH", f"/v1/wallets/{frozen['wallet_id']}", {"status": "frozen"})
    await world.ok("DELETE", f"/v1/wallets/{archived['wallet_id']}", {})
    token_account = world.build.reserve_tokens

    async def refused(to: str, status: int, code: str) -> None:
        error_of(await paying.call("POST", A2A, terms(paying, to)), status, code)

    await refused(paying.id, 400, "invalid_recipient")
    await refused(paying.vault, 400, "invalid_recipient")
    await refused(frozen["wallet_id"], 422, "wallet_frozen")
    await refused(frozen["chain_address"], 422, "wallet_frozen")
    await refused(archived["wallet_id"], 422, "wallet_archived")
    await refused(foreign["wallet_id"], 400, "invalid_recipient")
    await refused(foreign["chain_address"], 400, "invalid_recipient")
    await refused(world.org, 400, "invalid_recipient")
    await refused(str(token_account), 400, "invalid_recipient")


async def test_wallets_that_pay_nothing_make_no_escrow(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    _, receiving = sides
    frozen, archived = await agent(world), await agent(world, funds=None)
    await world.ok("PATCH", f"/v1/wallets/{frozen.id}", {"status": "frozen"})
    await world.ok("DELETE", f"/v1/wallets/{archived.id}", {})

    error_of(await frozen.call("POST", A2A, terms(frozen, receiving)), 422, "wallet_frozen")
    error_of(await world.call("POST", A2A, terms(archived, receiving)), 422, "wallet_archived")


@pytest.mark.proves("error wallet_not_empty")
async def test_wallet_with_open_escrows_is_not_archived(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    _, receiving = sides
    paying = await agent(world, funds="1")
    await paying.lock(receiving, "1")

    error_of(await world.call("DELETE", f"/v1/wallets/{paying.id}", {}), 422, "wallet_not_empty")


@pytest.mark.proves(
    "error wallet_receives_escrows", "DELETE /v1/wallets/{wallet_id}", "ArchiveWallet(acceptIncomingEscrows)"
)
async def test_wallet_that_receives_escrows_is_archived_only_on_request(
    world: ServiceWorld, sides: tuple[Agent, Agent]
) -> None:
    paying, _ = sides
    receiving = await agent(world, funds=None)
    await paying.lock(receiving, "1")

    path = f"/v1/wallets/{receiving.id}"
    error_of(await world.call("DELETE", path, {}), 422, "wallet_receives_escrows")
    archived = await world.ok("DELETE", path, {"acceptIncomingEscrows": True})
    assert archived["status"] == "archived"
    assert world.wallet_record(receiving.id).session_authority is None


@pytest.mark.proves("error too_many_escrows", "Limits: Open escrows of a wallet")
async def test_wallet_has_at_most_64_open_escrows(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    _, receiving = sides
    paying = await agent(world)
    for _ in range(64):
        last = await paying.lock(receiving, "0.01")

    error_of(await paying.call("POST", A2A, terms(paying, receiving, "0.01")), 422, "too_many_escrows")

    await receiving.ok("POST", of(last, "complete"), shows_output())
    assert (await paying.lock(receiving, "0.01"))["status"] == "locked"


@pytest.mark.proves(
    "CreatePolicy(maxOpenEscrows)",
    "UpdatePolicy(maxOpenEscrows)",
    "ClonePolicy(maxOpenEscrows)",
    "Policy(max_open_escrows)",
)
async def test_policy_bounds_the_open_escrows_of_a_wallet(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    _, receiving = sides
    policy = await world.policy(maxOpenEscrows=1)
    assert policy["max_open_escrows"] == 1
    paying = await agent(world, policy["policy_id"])
    first = await paying.lock(receiving, "0.01")

    refused = error_of(await paying.call("POST", A2A, terms(paying, receiving, "0.01")), 422, "too_many_escrows")
    assert "`maxOpenEscrows`" in refused["message"]

    await receiving.ok("POST", of(first, "complete"), shows_output())
    assert (await paying.lock(receiving, "0.01"))["status"] == "locked"
    error_of(await world.call("POST", "/v1/policies", {"name": "A", "maxOpenEscrows": 65}), 400, "invalid_request")


# Permissions


async def test_agents_spend_only_from_their_own_wallet_with_its_session(
    world: ServiceWorld, sides: tuple[Agent, Agent]
) -> None:
    paying, receiving = sides
    body = terms(paying, receiving)

    error_of(await receiving.call("POST", A2A, body), 403, "insufficient_permissions")
    error_of(await world.call("POST", A2A, body, key=paying.key), 401, "session_token_invalid")
    theirs = {"Session-Token": receiving.session}
    error_of(await world.call("POST", A2A, body, key=paying.key, headers=theirs), 401, "session_token_invalid")
    error_of(await world.call("POST", A2A, body, key=world.key("viewer")), 403, "insufficient_permissions")


async def test_escrows_of_others_are_not_found_by_an_agent(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    stranger = await agent(world)
    made = await paying.lock(receiving)

    for method, step, body in (
        ("GET", "", None),
        ("POST", "complete", shows_output()),
        ("POST", "dispute", _REASON),
    ):
        error_of(await stranger.call(method, of(made, step), body), 404, "escrow_not_found")
    error_of(await stranger.call("GET", f"{A2A}?walletId={paying.id}"), 403, "insufficient_permissions")
    other_org = world.key("admin", org=await world.organisation("neighbours"))
    error_of(await world.call("GET", of(made), key=other_org), 404, "escrow_not_found")
    await _unchanged(world, made)


async def test_each_step_needs_its_role_and_its_session(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving)
    viewer, operator = world.key("viewer"), world.key("operator")

    for step, body in (("complete", shows_output()), ("dispute", _REASON)):
        error_of(await world.call("POST", of(made, step), body, key=viewer), 403, "insufficient_permissions")
        error_of(await world.call("POST", of(made, step), body, key=receiving.key), 401, "session_token_invalid")
        stale = {"Session-Token": (await agent(world)).session}
        error_of(await world.call("POST", of(made, step), body, headers=stale), 401, "session_token_invalid")
    for key in (operator, paying.key):
        response = await world.call("POST", of(made, "resolve"), {"decision": "refund"}, key=key)
        error_of(response, 403, "insufficient_permissions")
    await _unchanged(world, made)


@pytest.mark.proves("GET /v1/payments/a2a/{escrow_id}", "error escrow_not_found")
async def test_unknown_escrow_is_not_found(world: ServiceWorld) -> None:
    for escrow in (_UNKNOWN, {"escrow_id": "nonsense"}):
        error_of(await world.call("GET", of(escrow)), 404, "escrow_not_found")
        error_of(await world.call("POST", of(escrow, "complete"), shows_output()), 404, "escrow_not_found")
        error_of(await world.call("POST", of(escrow, "dispute"), _REASON), 404, "escrow_not_found")
        error_of(await world.call("POST", of(escrow, "resolve"), {"decision": "refund"}), 404, "escrow_not_found")
    error_of(await world.call("GET", f"{A2A}?walletId=wal_unknown"), 404, "wallet_not_found")
    error_of(await world.call("GET", f"{A2A}?status=open"), 400, "invalid_request")


# Wrong statuses


@pytest.mark.proves("Escrows: locked to disputed", "error escrow_expired")
async def test_after_the_deadline_nothing_but_the_refund_happens(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world)
    made = await paying.lock(receiving, timeoutSeconds=60)
    await world.later(61)

    signed = signs_output(world, made, "signed_attestation", receiving.session_key)
    for step, body in (("complete", shows_output()), ("complete", signed), ("dispute", _REASON)):
        error_of(await receiving.call("POST", of(made, step), body), 422, "escrow_expired")
    error_of(await world.call("POST", of(made, "resolve"), {"decision": "refund"}), 422, "escrow_not_disputed")
    await _unchanged(world, made)


@pytest.mark.proves("error escrow_already_settled")
async def test_settled_and_disputed_escrows_take_no_further_step(
    world: ServiceWorld, sides: tuple[Agent, Agent]
) -> None:
    paying, receiving = sides
    released, disputed, split = [await paying.lock(receiving) for _ in range(3)]
    await receiving.ok("POST", of(released, "complete"), shows_output())
    for one in (disputed, split):
        await paying.ok("POST", of(one, "dispute"), _REASON)
    await world.ok("POST", of(split, "resolve"), {"decision": "split", "releasedAmount": "1"})

    async def refused(escrow: Json, step: str, body: Json) -> None:
        error_of(await world.call("POST", of(escrow, step), body), 422, "escrow_already_settled")

    for escrow in (released, disputed, split):
        await refused(escrow, "complete", shows_output())
        signed = signs_output(world, escrow, "signed_attestation", receiving.session_key)
        await refused(escrow, "complete", signed)
        await refused(escrow, "dispute", _REASON)
    for escrow in (released, split):
        await refused(escrow, "resolve", {"decision": "release"})


@pytest.mark.proves("error dispute_raised_before")
async def test_each_side_raises_one_dispute(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving)
    for side in (receiving, paying):
        await side.ok("POST", of(made, "dispute"), _REASON)
        now = await side.ok("POST", of(made, "dispute/withdraw"), {})

        error_of(await side.call("POST", of(made, "dispute"), _REASON), 422, "dispute_raised_before")

        await _unchanged(world, now)


@pytest.mark.proves(
    "POST /v1/payments/a2a/{escrow_id}/dispute", "Limits: taskDescription, reason", "DisputeEscrow(reason, evidence)"
)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"reason": ""}, "invalid_request"),
        ({"reason": "x" * 2_001}, "invalid_request"),
        ({"reason": "late", "evidence": "proof.pdf"}, "invalid_request"),
        ({"reason": "late", "evidence": f"sha256:{OUTPUT}00"}, "invalid_request"),
        ({"reason": "late", "walletId": "wal_4vJ9JU1bJJE96FWSJKvHsm"}, "invalid_request"),
    ],
)
async def test_malformed_dispute_is_refused(
    world: ServiceWorld, sides: tuple[Agent, Agent], body: Json, code: str
) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving, "0.01")

    error_of(await world.call("POST", of(made, "dispute"), body), 400, code)

    await _unchanged(world, made)


async def test_agent_acts_for_no_other_side(sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving)

    response = await receiving.call("POST", of(made, "dispute"), {**_REASON, "walletId": paying.id})

    error_of(response, 403, "insufficient_permissions")


# Decisions


@pytest.mark.proves("POST /v1/payments/a2a/{escrow_id}/resolve", "ResolveDispute(decision, releasedAmount)")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"decision": "burn"}, "invalid_request"),
        ({"decision": "split"}, "invalid_request"),
        ({"decision": "release", "releasedAmount": "1"}, "invalid_request"),
        ({"decision": "split", "releasedAmount": "0"}, "invalid_amount"),
        ({"decision": "split", "releasedAmount": "10"}, "invalid_amount"),
        ({"decision": "split", "releasedAmount": "10.000001"}, "invalid_amount"),
    ],
)
async def test_malformed_decision_is_refused(
    world: ServiceWorld, sides: tuple[Agent, Agent], body: Json, code: str
) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving)
    now = await paying.ok("POST", of(made, "dispute"), _REASON)

    error_of(await world.call("POST", of(made, "resolve"), body), 400, code)

    await _unchanged(world, now)


@pytest.mark.proves("error escrow_not_disputed")
async def test_decision_needs_a_dispute(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving)

    error_of(await world.call("POST", of(made, "resolve"), {"decision": "release"}), 422, "escrow_not_disputed")

    await _unchanged(world, made)


@pytest.mark.proves("error authority_offline")
async def test_without_the_arbiters_key_disputes_are_decided_elsewhere(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world)
    made = await paying.lock(receiving)
    await paying.ok("POST", of(made, "dispute"), _REASON)
    key_file = world.settings.data_dir / "keys" / "arbiter.json"
    key_file.rename(key_file.with_suffix(".away"))
    await world.restart()

    error_of(await world.call("POST", of(made, "resolve"), {"decision": "refund"}), 503, "authority_offline")


async def test_another_arbiter_than_the_escrows_decides_nothing(own_world: ServiceWorld) -> None:
    world = own_world
    paying, receiving = await agent(world), await agent(world)
    made = await paying.lock(receiving)
    await paying.ok("POST", of(made, "dispute"), _REASON)
    key_file = world.settings.data_dir / "keys" / "arbiter.json"
    key_file.write_text(str(list(bytes(Keypair()))))
    await world.restart()

    error_of(await world.call("POST", of(made, "resolve"), {"decision": "refund"}), 503, "authority_offline")


async def test_release_opens_no_more_token_accounts_than_the_wallet_may(own_world: ServiceWorld) -> None:
    world = own_world
    await world.restart(token_accounts_per_day=1)
    paying, first, second = await agent(world), Keypair().pubkey(), Keypair().pubkey()
    made, late = [await paying.lock(str(to), "1") for to in (first, second)]

    await paying.ok("POST", of(made, "complete"), shows_output())
    error_of(await paying.call("POST", of(late, "complete"), shows_output()), 400, "invalid_recipient")

    await _unchanged(world, late)
    build, payer = world.build, world.service.signers.fee_payer_address
    await world.land([build.create_token_account(payer=payer, owner=second)])
    assert (await paying.ok("POST", of(late, "complete"), shows_output()))["status"] == "released"
