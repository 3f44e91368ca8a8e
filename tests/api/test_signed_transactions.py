"""Changes whose transactions the organisation's authority signs elsewhere."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.api.signing import awaiting_signature
from app.chain.nonces import NonceAccount
from app.core.signers import Signers, read_key
from app.core.timestamps import now_ms, parse_iso_ms
from app.organisations.roles import change_roles, roles_of
from app.submission import offline
from app.submission.claim import Claim
from app.submission.offline import local_authority
from app.submission.plan import Authority, AwaitingSignatureError
from app.submission.recovery import Recovery
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Hardened:
    """A service without the authority's key, which is elsewhere."""

    def __init__(self, world: ServiceWorld, authority: Keypair) -> None:
        self.world = world
        self.authority = authority

    async def asked(self, method: str, path: str, body: Any = None, **options: Any) -> Json:
        """What a request answers that the authority signs elsewhere."""
        answer = await self.world.ok(method, f"{path}?sign=offline", body, **options)
        assert answer["status"] == "awaiting_signature"
        return answer

    def signed(self, waiting: Json, key: Keypair | None = None) -> str:
        raw = VersionedTransaction.from_bytes(base64.b64decode(waiting["transaction"]))
        signer = key or self.authority
        content = bytes(raw)[1 + 64 * len(raw.signatures) :]
        keys = raw.message.account_keys[: len(raw.signatures)]
        made = [
            signer.sign_message(content) if one in (signer.pubkey(), self.authority.pubkey()) else Signature.default()
            for one in keys
        ]
        return base64.b64encode(bytes(VersionedTransaction.populate(raw.message, made))).decode()

    async def sent(self, waiting: Json) -> Json:
        return await self.world.ok("POST", "/v1/signed-transactions", {"transaction": self.signed(waiting)})

    async def awaiting_signature(self) -> list[str]:
        return [one["id"] for one in (await self.world.ok("GET", "/v1/signed-transactions"))["data"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hardened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hardened]:
    folder: Path = tmp_path_factory.mktemp("hardened")
    async with ServiceWorld(folder) as world:
        authority = read_key(folder / "keys" / "authority.json")
        (folder / "keys" / "authority.json").unlink()
        await world.restart()
        assert world.service.signers.authority is None
        yield Hardened(world, authority)


@pytest.mark.proves(
    "GET /v1/signed-transactions", "POST /v1/signed-transactions", "AwaitingSignature(id, type, status, accounts)"
)
async def test_policy_is_created_changed_cloned_and_deleted(hardened: Hardened) -> None:
    world, payee = hardened.world, str(Keypair().pubkey())
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Mine", "maxPerTx": "5"})
    assert await hardened.awaiting_signature() == [asked["id"]]
    assert (list(asked["accounts"]), asked["signer"]) == ([world.org], str(hardened.authority.pubkey()))
    made = await hardened.sent(asked)
    assert (made["name"], made["max_per_tx"], made["allowed_recipients"]) == ("Mine", "5.00", [])
    assert await hardened.awaiting_signature() == []

    path = f"/v1/policies/{made['policy_id']}"
    listed = await hardened.sent(await hardened.asked("PATCH", path, {"allowedRecipients": [payee]}))
    assert listed["allowed_recipients"] == [payee]
    changed = await hardened.sent(await hardened.asked("PATCH", path, {"maxPerTx": "7", "allowedRecipients": []}))
    assert (changed["max_per_tx"], changed["allowed_recipients"]) == ("7.00", [])
    assert await world.ok("GET", path) == changed
    assert (await world.ok("PATCH", path, {"name": "Renamed"}))["name"] == "Renamed"
    cloned = await hardened.sent(await hardened.asked("POST", f"{path}/clone", {"name": "Clone"}))
    assert (cloned["name"], cloned["max_per_tx"]) == ("Clone", "7.00")
    deleted = await hardened.sent(await hardened.asked("DELETE", path, {}))
    assert deleted["policy_id"] == made["policy_id"]
    error_of(await world.call("GET", path), 404, "policy_not_found")


@pytest.mark.proves("POST /v1/signed-transactions", "AwaitingSignature(object)")
async def test_wallet_is_unfrozen_and_the_organisation_unpaused(hardened: Hardened) -> None:
    world = hardened.world
    wallet = await world.wallet()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})
    error = error_of(await world.call("PATCH", path, {"status": "active"}), 503, "authority_offline")
    assert "?sign=offline" in error["message"]

    change = {"status": "active", "policyId": "pol_moderate"}
    asked = await hardened.asked("PATCH", path, change)
    assert asked["object"] == wallet["wallet_id"]
    unfrozen = await hardened.sent(asked)
    assert (unfrozen["status"], unfrozen["policy"]["policy_id"]) == ("active", "pol_moderate")
    await world.ok("POST", "/v1/organization/pause", {"paused": True})
    asked = await hardened.asked("POST", "/v1/organization/pause", {"paused": False})
    assert await hardened.sent(asked) == {"paused": False}
    assert not (await world.ok("GET", "/v1/organization"))["paused"]


async def test_registration_is_changed(hardened: Hardened) -> None:
    world, path = hardened.world, f"/v1/recipients/{Keypair().pubkey()}"
    await world.ok("PUT", path, {"category": "nft"})
    changed = await hardened.sent(await hardened.asked("PUT", path, {"category": "dating"}))
    assert changed["category"] == "dating"


@pytest.mark.proves("POST /v1/signed-transactions")
async def test_same_transaction_sent_again_has_the_same_outcome(hardened: Hardened) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Once"}, headers={"Idempotency-Key": "once"})
    again = await world.call("POST", "/v1/policies?sign=offline", {"name": "Once"}, headers={"Idempotency-Key": "once"})
    assert (again.json(), again.headers["idempotent-replayed"]) == (asked, "true")
    other = await world.call("POST", "/v1/policies", {"name": "Once"}, headers={"Idempotency-Key": "once"})
    error_of(other, 409, "idempotency_conflict")

    made = await hardened.sent(asked)
    assert await hardened.sent(asked) == made
    body = {"transaction": hardened.signed(asked), "idempotencyKey": "send-once"}
    assert [await world.ok("POST", "/v1/signed-transactions", body) for _ in range(2)] == [made, made]


async def test_unsigned_transaction_whose_answer_was_lost_is_answered_again(
    hardened: Hardened, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, headers = hardened.world, {"Idempotency-Key": "lost"}

    async def crash(_claim: Claim, _body: str) -> None:
        raise RuntimeError("killed by the test")

    with monkeypatch.context() as broken:
        broken.setattr(Claim, "finish", crash)
        await world.call("POST", "/v1/policies?sign=offline", {"name": "Lost"}, headers=headers)
    [waiting] = await hardened.awaiting_signature()

    asked = await hardened.asked("POST", "/v1/policies", {"name": "Lost"}, headers=headers)

    assert ([asked["id"]], asked["id"]) == (await hardened.awaiting_signature(), waiting)
    await hardened.sent(asked)


@pytest.mark.proves(
    "POST /v1/signed-transactions",
    "error unsigned_transaction_not_found",
    "error invalid_signature",
    "SendSigned(transaction)",
    "AwaitingSignature(organization_address, signer, transaction)",
)
async def test_only_the_stored_bytes_signed_by_the_authority_are_taken(hardened: Hardened) -> None:
    world = hardened.world
    asked, thief = await hardened.asked("POST", "/v1/policies", {"name": "Taken"}), Keypair()
    raw = bytearray(base64.b64decode(hardened.signed(asked)))
    raw[-1] ^= 1
    changed = base64.b64encode(bytes(raw)).decode()
    refused = [
        (asked["transaction"], 400, "invalid_signature"),
        (hardened.signed(asked, thief), 400, "invalid_signature"),
        ("bm90IGEgdHJhbnNhY3Rpb24=", 400, "invalid_signature"),
        ("%%%", 400, "invalid_signature"),
        (changed, 404, "unsigned_transaction_not_found"),
    ]
    for transaction, status, code in refused:
        error_of(await world.call("POST", "/v1/signed-transactions", {"transaction": transaction}), status, code)
    for role in ("viewer", "operator"):
        key = world.key(role)
        body = {"transaction": hardened.signed(asked)}
        error_of(await world.call("POST", "/v1/signed-transactions", body, key=key), 403, "insufficient_permissions")
    await hardened.sent(asked)


@pytest.mark.proves(
    "DELETE /v1/signed-transactions/{id}",
    "error unsigned_transaction_not_found",
    "error unsigned_transaction_void",
    "WithdrawnTransaction(id, status)",
)
async def test_withdrawn_transaction_is_never_completed(hardened: Hardened) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Withdrawn"})
    path = f"/v1/signed-transactions/{asked['id']}"
    assert await world.ok("DELETE", path, {}) == {"id": asked["id"], "status": "withdrawn"}
    assert await hardened.awaiting_signature() == []
    body = {"transaction": hardened.signed(asked)}
    error_of(await world.call("POST", "/v1/signed-transactions", body), 422, "unsigned_transaction_void")
    error_of(
        await world.call("DELETE", "/v1/signed-transactions/tx_unknown", {}), 404, "unsigned_transaction_not_found"
    )

    # The next change uses the same nonce, and its landing ends the withdrawn one for good.
    following = await hardened.asked("POST", "/v1/policies", {"name": "Withdrawn"})
    assert (following["nonce_account"], following["id"] != asked["id"]) == (asked["nonce_account"], True)
    await hardened.sent(following)
    assert await world.ok("DELETE", path, {}) == {"id": asked["id"], "status": "withdrawn"}
    landed = await world.call("DELETE", f"/v1/signed-transactions/{following['id']}", {})
    error_of(landed, 422, "unsigned_transaction_void")


@pytest.mark.proves("DELETE /v1/signed-transactions/{id}")
async def test_advance_signed_elsewhere_ends_a_transaction_on_the_chain(hardened: Hardened) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Advanced"})
    advance = await hardened.asked("DELETE", f"/v1/signed-transactions/{asked['id']}", {})
    assert (advance["type"], advance["nonce_account"]) == ("advance_nonce", asked["nonce_account"])
    assert await hardened.awaiting_signature() == [advance["id"]]

    assert await hardened.sent(advance) == {"id": advance["id"], "status": "withdrawn"}

    found = NonceAccount.of(await world.service.chain.account(asked["nonce_account"]))
    raw = VersionedTransaction.from_bytes(base64.b64decode(asked["transaction"]))
    assert found is not None
    assert found.nonce != raw.message.recent_blockhash


@pytest.mark.proves("AwaitingSignature(nonce_account)")
async def test_nonce_accounts_are_used_again(hardened: Hardened) -> None:
    first = [await hardened.asked("POST", "/v1/policies", {"name": f"Both {number}"}) for number in range(2)]
    places = {one["nonce_account"] for one in first}
    assert len(places) == 2
    for one in reversed(first):
        await hardened.sent(one)
    again = [await hardened.asked("POST", "/v1/policies", {"name": f"Again {number}"}) for number in range(2)]
    assert {one["nonce_account"] for one in again} == places
    for one in again:
        await hardened.sent(one)


async def test_change_that_another_overtook_is_a_conflict(hardened: Hardened) -> None:
    world = hardened.world
    made = await hardened.sent(await hardened.asked("POST", "/v1/policies", {"name": "Overtaken"}))
    path = f"/v1/policies/{made['policy_id']}"
    first = await hardened.asked("PATCH", path, {"maxPerTx": "1"})
    second = await hardened.asked("PATCH", path, {"maxPerTx": "2"})
    stale = await world.call("PATCH", f"{path}?sign=offline", {"maxPerTx": "3"}, headers={"If-Match": '"9-00000000"'})
    error_of(stale, 409, "version_conflict")

    await hardened.sent(second)
    body = {"transaction": hardened.signed(first)}
    error_of(await world.call("POST", "/v1/signed-transactions", body), 409, "version_conflict")

    assert (await world.ok("GET", path))["max_per_tx"] == "2.00"
    await world.ok("DELETE", f"/v1/signed-transactions/{first['id']}", {})


@pytest.mark.proves("Limits: Allowlist in a change that is signed elsewhere")
async def test_what_cannot_be_one_signed_change_is_refused(hardened: Hardened) -> None:
    world = hardened.world
    made = await hardened.sent(await hardened.asked("POST", "/v1/policies", {"name": "Mixed"}))
    wallet = await world.wallet()
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    many = [str(Keypair().pubkey()) for _ in range(30)]
    requests: list[tuple[str, str, Json]] = [
        ("POST", "/v1/policies?sign=online", {"name": "No"}),
        ("POST", "/v1/policies?sign=offline&sign=offline", {"name": "No"}),
        ("POST", "/v1/policies?other=offline", {"name": "No"}),
        ("POST", "/v1/wallets?sign=offline", {"agentId": "a", "label": "A", "policyId": "pol_locked"}),
        ("PATCH", f"/v1/policies/{made['policy_id']}?sign=offline", {"name": "New", "maxPerTx": "1"}),
        ("POST", "/v1/policies?sign=offline", {"name": "Long", "allowedRecipients": many}),
        ("PATCH", f"/v1/wallets/{wallet['wallet_id']}?sign=offline", {"status": "active", "label": "New"}),
    ]
    for method, path, body in requests:
        error_of(await world.call(method, path, body), 400, "invalid_request")
    assert await hardened.awaiting_signature() == []


@pytest.mark.proves("AwaitingSignature(status)")
async def test_what_needs_no_signature_is_refused_with_sign_offline(hardened: Hardened) -> None:
    world = hardened.world
    made = await hardened.sent(await hardened.asked("POST", "/v1/policies", {"name": "Needless"}))
    wallet, recipient = await world.wallet(), f"/v1/recipients/{Keypair().pubkey()}"
    place, policy = f"/v1/wallets/{wallet['wallet_id']}", f"/v1/policies/{made['policy_id']}"
    before = [await world.ok("GET", path) for path in (place, policy, "/v1/organization")]
    requests: list[tuple[str, str, Json]] = [
        ("POST", "/v1/organization/pause", {"paused": True}),
        ("PATCH", place, {"status": "frozen"}),
        ("PATCH", place, {"status": "frozen", "policyId": made["policy_id"]}),
        ("PATCH", place, {"policyId": made["policy_id"]}),
        ("PATCH", place, {"policyId": made["policy_id"], "label": "New"}),
        ("PATCH", place, {"label": "New"}),
        ("PATCH", policy, {"name": "New"}),
        ("PATCH", policy, {"x402Hosts": ["api.example.com"]}),
        ("PUT", recipient, {"category": "nft"}),
    ]

    for method, path, body in requests:
        error = error_of(await world.call(method, f"{path}?sign=offline", body), 400, "invalid_request")
        assert "needs no signature by the authority" in error["message"], (method, path, body)

    # Nothing took effect, and nothing waits
    assert [await world.ok("GET", path) for path in (place, policy, "/v1/organization")] == before
    error_of(await world.call("GET", recipient), 404, "recipient_not_found")
    assert world.service.brake.without_request() == []
    assert await hardened.awaiting_signature() == []


async def test_second_signed_rotation_brings_no_replaced_key_back(own_world: ServiceWorld) -> None:
    # Given two signed files that make the same key the operator's
    world, service = own_world, own_world.service
    hardened = Hardened(world, read_key(world.settings.data_dir / "keys" / "authority.json"))
    elsewhere = Authority(hardened.authority.pubkey(), None)
    first, second = Keypair().pubkey(), Keypair().pubkey()
    files = []
    for _ in range(2):
        with pytest.raises(AwaitingSignatureError) as waiting:
            await change_roles(service, world.org, elsewhere, operator=first)
        files.append((await awaiting_signature(service, waiting.value.attempt)).model_dump())

    # When one has landed, and the key was replaced again
    await hardened.sent(files[0])
    await change_roles(service, world.org, local_authority(hardened.authority), operator=second)

    # Then the other changes nothing
    twin = await world.call("POST", "/v1/signed-transactions", {"transaction": hardened.signed(files[1])})
    error_of(twin, 409, "version_conflict")
    assert (await roles_of(service, world.org))["operator"] == second


@pytest.mark.proves("Limits: Allowlist in a change that is signed elsewhere")
async def test_long_allowlist_is_one_signed_change(hardened: Hardened) -> None:
    # The operator writes the list, and the authority signs what puts exactly its entries in force
    entries = [str(Keypair().pubkey()) for _ in range(60)]
    limits = {"maxPerTx": "1", "maxPerDay": "2", "maxPerMonth": "3", "requireCoSign": "1"}
    rules = {"velocityCap": 1, "expiry": "2099-01-01T00:00:00Z", "blockedCategories": ["drugs"], **limits}
    made = await hardened.sent(await hardened.asked("POST", "/v1/policies", {"name": "Long", **rules}))
    path = f"/v1/policies/{made['policy_id']}"
    asked = await hardened.asked("PATCH", path, {"allowedRecipients": entries, "maxPerTx": "2"})
    assert (await hardened.world.ok("GET", path))["allowed_recipients"] == []
    changed = await hardened.sent(asked)
    assert set(changed["allowed_recipients"]) == set(entries)
    assert changed["max_per_tx"] == "2.00"


@pytest.mark.proves("GET /v1/signed-transactions")
async def test_other_organisations_neither_see_send_nor_withdraw(hardened: Hardened) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Ours"})
    theirs = world.key("admin", org=str(Keypair().pubkey()))
    assert await world.ok("GET", "/v1/signed-transactions", key=theirs) == {"data": []}
    body = {"transaction": hardened.signed(asked)}
    path = "/v1/signed-transactions"
    error_of(await world.call("POST", path, body, key=theirs), 404, "unsigned_transaction_not_found")
    refused = await world.call("DELETE", f"{path}/{asked['id']}", {}, key=theirs)
    error_of(refused, 404, "unsigned_transaction_not_found")
    await hardened.sent(asked)


@pytest.mark.proves(
    "error unsigned_transaction_void",
    "Limits: Transactions of an organisation that wait for a signature",
    "AwaitingSignature(created_at, expires_at)",
)
async def test_unsigned_transaction_is_void_after_7_days(hardened: Hardened, monkeypatch: pytest.MonkeyPatch) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Late"})
    lived = parse_iso_ms(asked["expires_at"]) - parse_iso_ms(asked["created_at"])
    assert lived == 7 * 86_400_000
    monkeypatch.setattr("app.signatures.service.now_ms", lambda: now_ms() + lived)

    body = {"transaction": hardened.signed(asked)}
    error_of(await world.call("POST", "/v1/signed-transactions", body), 422, "unsigned_transaction_void")
    assert await hardened.awaiting_signature() == []


@pytest.mark.proves(
    "error too_many_unsigned_transactions", "Limits: Transactions of an organisation that wait for a signature"
)
async def test_outstanding_transactions_are_bounded(hardened: Hardened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "MAX_OUTSTANDING", 1)
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Only"})
    more = await hardened.world.call("POST", "/v1/policies?sign=offline", {"name": "More"})
    error_of(more, 422, "too_many_unsigned_transactions")
    await hardened.sent(asked)


async def test_lost_answer_of_the_send_is_the_same_transaction_again(hardened: Hardened) -> None:
    world = hardened.world
    wallet = await world.wallet()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})
    asked = await hardened.asked("PATCH", path, {"status": "active"})
    body = {"transaction": hardened.signed(asked)}
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error = error_of(await world.call("POST", "/v1/signed-transactions", body), 503, "chain_unavailable")
    assert error["tx_id"] == asked["id"]
    world.line.mend()
    # An unfreeze is not sent again by recovery; a new one waits until the first has an outcome.
    await world.service.part(Recovery).recover()
    other = await world.call("PATCH", f"{path}?sign=offline", {"status": "active"})
    error_of(other, 503, "chain_unavailable")
    signers, withdrawal = world.service.signers, f"/v1/signed-transactions/{asked['id']}"
    error_of(await world.call("DELETE", withdrawal, {}), 503, "authority_offline")
    # The key of another authority cannot advance the nonce either.
    world.service.signers = Signers(signers.fee_payer, signers.operator, Keypair(), None)
    try:
        error_of(await world.call("DELETE", withdrawal, {}), 503, "authority_offline")
    finally:
        world.service.signers = signers

    assert (await hardened.sent(asked))["status"] == "active"


@pytest.mark.proves("error unsigned_transaction_void")
async def test_sent_transaction_ends_when_its_nonce_was_advanced(hardened: Hardened) -> None:
    world = hardened.world
    wallet = await world.wallet()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"status": "frozen"})
    asked = await hardened.asked("PATCH", path, {"status": "active"})
    body = {"transaction": hardened.signed(asked)}
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", "/v1/signed-transactions", body), 503, "chain_unavailable")
    world.line.mend()

    await hardened.sent(await hardened.asked("DELETE", f"/v1/signed-transactions/{asked['id']}", {}))
    world.clock.ahead += 33 * 0.4  # until the advance is finalized
    await world.service.chain.blockhash(fresh=True)
    await world.service.part(Recovery).recover()

    error_of(await world.call("POST", "/v1/signed-transactions", body), 422, "unsigned_transaction_void")
    unfrozen = await hardened.sent(await hardened.asked("PATCH", path, {"status": "active"}))
    assert unfrozen["status"] == "active"


@pytest.mark.proves("error unsigned_transaction_void")
async def test_new_fee_payer_completes_nothing_of_the_old_one(hardened: Hardened) -> None:
    world = hardened.world
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Old payer"})
    signers = world.service.signers
    other = Keypair()
    world.service.signers = Signers(other, signers.operator, None, None)
    try:
        body = {"transaction": hardened.signed(asked)}
        refused = await world.call("POST", "/v1/signed-transactions", body)
        assert "fee payer" in error_of(refused, 422, "unsigned_transaction_void")["message"]
    finally:
        world.service.signers = signers
    await hardened.sent(asked)


async def test_replaced_authority_signs_nothing_any_more(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        old, new = read_key(tmp_path / "keys" / "authority.json"), Keypair()
        hardened = Hardened(world, old)
        asked = await hardened.asked("POST", "/v1/policies", {"name": "Before"})
        build = world.build
        await world.land([await world.org_update(old.pubkey(), pending_authority=new.pubkey())], old)
        await world.land([build.accept_authority(new_authority=new.pubkey())], new)

        body = {"transaction": hardened.signed(asked)}
        error_of(await world.call("POST", "/v1/signed-transactions", body), 422, "unsigned_transaction_void")

        following = await Hardened(world, new).asked("POST", "/v1/policies", {"name": "After"})
        assert following["nonce_account"] != asked["nonce_account"]
        assert (await Hardened(world, new).sent(following))["name"] == "After"


@pytest.mark.proves("DELETE /v1/signed-transactions/{id}")
async def test_authoritys_key_here_advances_the_nonce_at_once(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        asked = await world.ok("POST", "/v1/policies?sign=offline", {"name": "Here"})
        before = NonceAccount.of(await world.service.chain.account(asked["nonce_account"]))
        await world.later(1)
        await world.ok("DELETE", f"/v1/signed-transactions/{asked['id']}", {})
        after = NonceAccount.of(await world.service.chain.account(asked["nonce_account"]))
        assert before is not None
        assert after is not None
        assert before.nonce != after.nonce


async def test_what_waits_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        authority = read_key(tmp_path / "keys" / "authority.json")
        (tmp_path / "keys" / "authority.json").unlink()
        await world.restart()
        hardened = Hardened(world, authority)
        asked = await hardened.asked("POST", "/v1/policies", {"name": "Kept"}, headers={"Idempotency-Key": "kept"})
        await world.restart()
        assert (await world.ok("GET", "/v1/signed-transactions"))["data"] == [asked]
        await world.later(86_400)
        assert (await hardened.sent(asked))["name"] == "Kept"


@pytest.mark.proves("action signed_transaction.send", "action signed_transaction.withdraw")
async def test_requests_signatures_and_withdrawals_are_on_record(hardened: Hardened) -> None:
    asked = await hardened.asked("POST", "/v1/policies", {"name": "Recorded"})
    made = await hardened.sent(asked)
    path = f"/v1/policies/{made['policy_id']}"
    given_up = await hardened.asked("PATCH", path, {"maxPerTx": "1"})
    await hardened.world.ok("DELETE", f"/v1/signed-transactions/{given_up['id']}", {})

    entries = (await hardened.world.ok("GET", "/v1/audit-log", None))["data"]

    assert [(one["action"], one["object"]) for one in entries[:4]] == [
        ("signed_transaction.withdraw", given_up["id"]),
        ("policy.update", made["policy_id"]),
        ("signed_transaction.send", asked["id"]),
        ("policy.create", made["policy_id"]),
    ]
    assert entries[3]["details"] == {"tx_id": asked["id"], "status": "awaiting_signature"}
