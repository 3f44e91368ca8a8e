"""Idempotency keys: one effect and one answer, however often and concurrently a request is repeated."""

import asyncio

import httpx
import pytest

from app.core.timestamps import now_ms
from app.submission.plan import Outcome
from tests.support.escrows import A2A, agent, terms
from tests.support.lost_answers import lose_answer
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


@pytest.mark.proves("Idempotency: Repetition", "Idempotency: Same parameters")
async def test_repetition_gets_the_first_answer_and_pays_once(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()

    first = await world.pay(wallet, to, "5", body={"idempotencyKey": "again"})
    second = await world.pay(wallet, to, "5.00", headers=_key("again"))

    assert second.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert await world.balance(to) == 5_000_000


@pytest.mark.proves("Limits: Lifetime of an idempotency key")
async def test_answer_is_repeated_for_a_day_and_then_the_key_is_new(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await world.wallet(), await world.payee()
    first = await world.pay(wallet, to, "1", headers=_key("day"))
    began, ahead = now_ms(), 0
    for module in ("claim", "idempotency"):
        monkeypatch.setattr(f"app.submission.{module}.now_ms", lambda: began + ahead)

    ahead = 24 * 3_600_000 - 5_000
    assert (await world.pay(wallet, to, "1", headers=_key("day"))).json() == first.json()
    ahead = 24 * 3_600_000 + 1
    assert (await world.pay(wallet, to, "2", headers=_key("day"))).status_code == 200

    assert await world.balance(to) == 3_000_000


@pytest.mark.proves("error idempotency_conflict", "Idempotency: Same parameters")
async def test_other_parameters_under_the_same_key_conflict(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    assert (await world.pay(wallet, to, "5", headers=_key("conflict"))).status_code == 200

    error_of(await world.pay(wallet, to, "6", headers=_key("conflict")), 409, "idempotency_conflict")
    other_path = {"to": to, "amount": "5", "currency": "USDC"}
    response = await world.call("POST", f"/v1/wallets/{wallet['wallet_id']}/pay", other_path, headers=_key("conflict"))
    error_of(response, 409, "idempotency_conflict")
    assert await world.balance(to) == 5_000_000


@pytest.mark.proves("Idempotency: Key")
async def test_two_keys_in_one_request_must_agree(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()

    both = await world.pay(wallet, to, "1", body={"idempotencyKey": "a"}, headers=_key("b"))
    error_of(both, 400, "invalid_request")

    same = await world.pay(wallet, to, "1", body={"idempotencyKey": "same"}, headers=_key("same"))
    assert same.status_code == 200


async def test_parallel_duplicates_pay_once(own_world: ServiceWorld) -> None:
    world = own_world
    # All wait for the first one, however long that takes.
    await world.restart(idempotency_wait=60.0)
    wallet, to = await world.wallet(), await world.payee()

    answers = await asyncio.gather(*(world.pay(wallet, to, "1", headers=_key("parallel")) for _ in range(16)))

    assert {one.status_code for one in answers} == {200}
    assert len({one.json()["tx_id"] for one in answers}) == 1
    assert sum("idempotent-replayed" not in one.headers for one in answers) == 1
    assert await world.balance(to) == 1_000_000


@pytest.mark.proves("error idempotency_in_progress", "Limits: Wait of a duplicate request")
async def test_duplicate_of_a_slow_request_is_refused_as_in_progress(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    await world.restart(idempotency_wait=0.2)
    held = asyncio.Event()

    world.line.hold = lambda method: held.wait() if method == "sendTransaction" else None
    first = asyncio.create_task(world.pay(wallet, to, "1", headers=_key("slow")))
    while "sendTransaction" not in world.line.methods:  # noqa: ASYNC110 - the line only notes what passed
        await asyncio.sleep(0.01)
    error_of(await world.pay(wallet, to, "1", headers=_key("slow")), 409, "idempotency_in_progress")
    error_of(await world.pay(wallet, to, "2", headers=_key("slow")), 409, "idempotency_conflict")
    held.set()

    assert (await first).status_code == 200
    assert (await world.pay(wallet, to, "1", headers=_key("slow"))).headers["idempotent-replayed"] == "true"
    assert await world.balance(to) == 1_000_000


@pytest.mark.proves("Idempotency: Errors")
async def test_refusal_frees_the_key(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(funds=None), await world.payee()
    error_of(await world.pay(wallet, to, "1", headers=_key("free")), 422, "wallet_insufficient_balance")
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "1"})

    assert (await world.pay(wallet, to, "1", headers=_key("free"))).json()["status"] == "confirmed"


@pytest.mark.parametrize("how", ["error", "cancellation"])
async def test_request_that_was_done_keeps_its_key_when_its_end_fails(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world, submitter = own_world, own_world.service.submitter
    wallet = await world.wallet(funds="1")
    reached = asyncio.Event()

    async def does_not_end(_attempt: object, _slot: int) -> Outcome:
        reached.set()
        if how == "error":
            raise OSError("the disk is full")
        return await asyncio.Future()

    async def fund() -> httpx.Response:
        body = {"allocations": [{"walletId": wallet["wallet_id"], "amount": "7"}]}
        return await world.call("POST", "/v1/wallets/fund-batch", body, headers=_key("batch"))

    with monkeypatch.context() as patched:
        patched.setattr(submitter, "succeed", does_not_end)
        first = asyncio.create_task(fund())
        await reached.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    again = await fund()

    assert again.status_code == 200, again.text
    assert await world.balance(wallet["chain_address"]) == 8_000_000


async def test_agent_does_not_get_the_answer_to_another_wallets_request(world: ServiceWorld) -> None:
    paying, other, receiving = [await agent(world) for _ in range(3)]
    body = {**terms(paying, receiving, "3"), "idempotencyKey": "between-two"}
    made = await paying.ok("POST", A2A, body)

    error_of(await other.call("POST", A2A, body), 403, "insufficient_permissions")

    assert (await paying.ok("POST", A2A, body)) == made


@pytest.mark.proves("Idempotency: Scope")
async def test_organisations_do_not_share_keys(world: ServiceWorld) -> None:
    other = await world.organisation("idempotency-neighbour")
    theirs = world.key("admin", org=other)
    body = {"agentId": "same", "label": "Same", "policyId": "pol_moderate"}

    ours = await world.ok("POST", "/v1/wallets", body, headers=_key("shared"))
    made = await world.ok("POST", "/v1/wallets", body, headers=_key("shared"), key=theirs)

    assert ours["wallet_id"] != made["wallet_id"]


@pytest.mark.proves("Idempotency: Key")
@pytest.mark.parametrize("spelling", ["header", "camel", "snake"])
async def test_every_change_takes_a_key(world: ServiceWorld, spelling: str) -> None:
    async def twice(method: str, path: str, body: Json) -> Json:
        name = f"{spelling} {method} {path}"
        headers = _key(name) if spelling == "header" else {}
        field = {"camel": {"idempotencyKey": name}, "snake": {"idempotency_key": name}}.get(spelling, {})
        first = await world.call(method, path, {**body, **field}, headers=headers)
        second = await world.call(method, path, {**body, **field}, headers=headers)
        assert first.status_code == 200, first.text
        assert second.json() == first.json()
        assert second.headers["idempotent-replayed"] == "true"
        answer: Json = first.json()
        return answer

    to = await world.payee()
    policy = await twice("POST", "/v1/policies", {"name": "Once", "maxPerTx": "5"})
    wallet = await twice(
        "POST", "/v1/wallets", {"agentId": f"once-{spelling}", "label": "Once", "policyId": policy["policy_id"]}
    )
    path = f"/v1/wallets/{wallet['wallet_id']}"
    assert (await twice("POST", f"{path}/fund", {"amount": "3"}))["usdc_balance"] == "3.00"
    assert (await twice("POST", f"{path}/withdraw", {"amount": "1"}))["usdc_balance"] == "2.00"
    token = (await twice("POST", f"{path}/rotate-token", {"ttlSeconds": 600}))["session_token"]
    assert token.startswith("avs_")
    await twice("POST", f"{path}/pay", {"to": to, "amount": "2", "currency": "USDC"})
    await twice("PATCH", path, {"label": "Twice", "status": "frozen"})
    await twice("DELETE", path, {})
    await twice("PUT", f"/v1/recipients/{to}", {"category": "marketplace"})
    assert await world.balance(to) == 2_000_000


@pytest.mark.proves("error idempotency_conflict", "Idempotency: Answers with secrets")
async def test_answer_with_a_secret_is_repeated_only_to_the_api_key_that_asked(world: ServiceWorld) -> None:
    # Given a webhook that was registered with an API key which is then rotated, with an overlap
    made = await world.ok("POST", "/v1/keys", {"role": "operator"})
    body, headers = {"url": "https://example.com/sealed", "events": ["*"]}, _key("sealed")
    hook = await world.ok("POST", "/v1/webhooks", body, key=made["key"], headers=headers)
    rotated = await world.ok("POST", f"/v1/keys/{made['key_id']}/rotate", {"overlapSeconds": 3600})

    # Then the new key neither gets the secret nor registers it again
    for key in (rotated["key"], world.keys["admin"]):
        refused = await world.call("POST", "/v1/webhooks", body, key=key, headers=headers)
        assert "nother API key" in error_of(refused, 409, "idempotency_conflict")["message"]
    other = await world.call(
        "POST", "/v1/webhooks", {**body, "events": ["wallet.created"]}, key=rotated["key"], headers=headers
    )
    assert "another API key" not in error_of(other, 409, "idempotency_conflict")["message"]
    listed = (await world.ok("GET", "/v1/webhooks?limit=100"))["data"]
    assert [one["webhook_id"] for one in listed if one["url"] == body["url"]] == [hook["webhook_id"]]

    # Then the old one gets it until it ends, and answers without secrets go to any
    again = await world.call("POST", "/v1/webhooks", body, key=made["key"], headers=headers)
    assert (again.json(), again.headers["idempotent-replayed"]) == (hook, "true")
    policy = {"name": "Open"}
    first = await world.ok("POST", "/v1/policies", policy, headers=_key("open"))
    assert await world.ok("POST", "/v1/policies", policy, key=world.key("admin"), headers=_key("open")) == first


@pytest.mark.proves("Idempotency: Answers with secrets")
async def test_request_without_an_answer_is_not_finished_by_another_api_key(world: ServiceWorld) -> None:
    body, headers = {"role": "viewer", "name": "unanswered"}, _key("unanswered")
    unseen = await world.ok("POST", "/v1/keys", body, headers=headers)
    await lose_answer(world, "unanswered")

    refused = await world.call("POST", "/v1/keys", body, key=world.key("admin"), headers=headers)

    error_of(refused, 409, "idempotency_conflict")
    made = [one for one in (await world.ok("GET", "/v1/keys?limit=100"))["data"] if one["name"] == "unanswered"]
    assert [one["hint"] for one in made] == [unseen["hint"]]


@pytest.mark.proves("Idempotency: Answers with secrets")
async def test_sealed_answer_is_kept_for_a_day(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    body, headers = {"role": "viewer", "name": "for a day"}, _key("for a day")
    first = await world.ok("POST", "/v1/keys", body, headers=headers)
    began, ahead = now_ms(), 0
    for module in ("claim", "idempotency"):
        monkeypatch.setattr(f"app.submission.{module}.now_ms", lambda: began + ahead)

    ahead = 24 * 3_600_000 - 5_000
    assert await world.ok("POST", "/v1/keys", body, headers=headers) == first
    ahead = 24 * 3_600_000 + 1
    assert (await world.ok("POST", "/v1/keys", body, headers=headers))["key_id"] != first["key_id"]


@pytest.mark.proves("SessionToken(session_token)")
async def test_stored_session_token_is_not_readable_in_the_database(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    token = (await world.ok("POST", path, {}, headers=_key("secret")))["session_token"]

    folder = world.service.settings.data_dir
    stored = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())

    assert token.encode() not in stored
    assert (await world.ok("POST", path, {}, headers=_key("secret")))["session_token"] == token
