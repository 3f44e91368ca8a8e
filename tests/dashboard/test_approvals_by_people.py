"""A policy's `approvals`: above an amount people must approve, and a lone operator cannot pay by any route."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from sqlalchemy import select, update

from app.core.actors import Role
from app.core.identifiers import random_id
from app.core.signers import read_key
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.people.sessions import open_session
from app.store.approval_decisions import table as decisions
from app.store.approval_events import report_reminders
from app.store.approval_requests import LIFETIME
from app.store.keys import table as api_keys
from app.store.people import Passkey, passkeys, remove_person
from app.store.policies import policy_details
from tests.api.test_signed_transactions import Hardened
from tests.dashboard.browsing import Crafted, add_person, log
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

_RULE = {"required": 2, "above": "10"}


class Person:
    """A person with a passkey who is signed in to the dashboard."""

    def __init__(self, world: ServiceWorld, name: str, role: Role = "operator", *, passkey: bool = True) -> None:
        self.world, self.by, now = world, add_person(world, role, name), now_ms()
        self.id = self.by.actor.id
        if passkey:
            made = Passkey(random_id("cred_"), self.id, b"", 0, now, now)
            world.service.db.write_now(lambda conn: insert_record(conn, made))
        self.browser = Crafted(
            world, world.service.db.write_now(lambda conn: open_session(conn, self.by, "test", now, way="test"))
        )

    async def post(self, path: str, **fields: str) -> httpx.Response:
        return await self.browser.post(f"/dashboard/{path}", fields)

    async def approve(self, approval_id: str) -> int:
        """Approve, and return the status: 303 if the approval counts."""
        return (await self.post(f"approvals/{approval_id}/approve")).status_code

    async def change(self, policy: Json, then: str = "", **approvals: str) -> httpx.Response:
        """Change the fields about approvals in the policy's form, and leave the others unchanged."""
        path = f"/v1/policies/{policy['policy_id']}"
        answer = await self.world.call("GET", path)
        now = answer.json()
        rule = now["approvals"] or {"required": "", "above": ""}
        fields = {"name": now["name"], "require_co_sign": now["require_co_sign"] or ""}
        fields |= {f"approvals_{name}": str(value) for name, value in rule.items()} | approvals
        tag = answer.headers["etag"].strip('"')
        return await self.post(f"policies/{policy['policy_id']}{then}", expected_version=tag, **fields)

    def key(self, role: Role) -> str:
        """Return an API key that this person has created."""
        key = self.world.key(role)
        mine = update(api_keys).where(api_keys.c.hint == key[-4:]).values(created_by=self.by.actor)
        self.world.service.db.write_now(lambda conn: conn.execute(mine))
        return key

    def remove(self) -> None:
        self.world.service.db.write_now(lambda conn: remove_person(conn, self.world.org, self.id, now_ms()))


@dataclass
class Team:
    """Three people, and a vault with 100 USDC whose policy requires two of them above 10 USDC."""

    world: ServiceWorld
    people: list[Person]
    policy: Json
    wallet: Json
    agent: str
    session: str
    to: str

    @classmethod
    async def of(cls, world: ServiceWorld, **rule: Any) -> "Team":
        people = [Person(world, name, "admin") for name in ("Ada", "Grace", "Mary")]
        policy = await world.policy(approvals={**_RULE, **rule}, allowAllowances=True)
        wallet = await world.wallet(policy["policy_id"])
        agent, session = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
        return cls(world, people, policy, wallet, agent, session, await world.payee())

    async def pay(self, key: str | None = None, amount: str = "20", to: str | None = None) -> httpx.Response:
        return await self.world.pay(self.wallet, to or self.to, amount, key=key or self.agent, session=self.session)

    async def refused(self, **options: Any) -> str:
        error = error_of(await self.pay(**options), 402, "policy_violation")
        assert error["violation"]["rule"] == "require_co_sign"
        return str(error["approval_id"])

    async def shown(self, approval_id: str) -> Json:
        return await self.world.ok("GET", f"/v1/approvals/{approval_id}", key=self.agent)


@pytest.mark.proves(
    "CreatePolicy(approvals)",
    "Policy(approvals)",
    "ApprovalRule(required, above)",
    "UpdatePolicy(approvals)",
    "PreviewPolicy(approvals)",
)
async def test_rule_requires_no_more_people_than_there_are(own_world: ServiceWorld) -> None:
    world = own_world
    Person(world, "Ada")
    Person(world, "Viewer", "viewer")
    Person(world, "Keyless", passkey=False)
    body = {"name": "Two", "approvals": {"required": 2, "above": "500"}}
    error = error_of(await world.call("POST", "/v1/policies", body), 400, "invalid_request")
    assert error["message"].startswith("approvals.required: must be at most 1")
    Person(world, "Grace", "admin")
    made = await world.ok("POST", "/v1/policies", body)
    assert (made["approvals"], made["require_co_sign"]) == ({"required": 2, "above": "500.00"}, "500.00")
    path = f"/v1/policies/{made['policy_id']}"
    for wrong in (
        *({"required": number, "above": "1"} for number in (0, 4, True, "1")),
        *({"required": 1}, {"above": "1"}),
    ):
        error_of(await world.call("PATCH", path, {"approvals": wrong}), 400, "invalid_request")
    for limit in (None, "500.01"):
        error = error_of(await world.call("PATCH", path, {"requireCoSign": limit}), 400, "invalid_request")
        assert error["message"] == "requireCoSign: must be at most approvals.above."
    await world.ok("POST", f"{path}/preview", {"approvals": None})
    assert (await world.ok("GET", path))["approvals"] == made["approvals"]
    tighter = await world.ok("PATCH", path, {"approvals": {"required": 2, "above": "100"}})
    assert (tighter["approvals"]["above"], tighter["require_co_sign"]) == ("100.00", "100.00")
    log_of = (await world.ok("GET", f"{path}/audit-log"))["data"]
    assert log_of[-1]["changes"]["approvals"]["to"] == {"required": 2, "above": "100.00"}


@pytest.mark.proves(
    "Approval(approvals_required, approvals)",
    "PersonApproval(by, decided_at)",
    "event approval.given",
)
async def test_payment_passes_once_when_two_people_have_approved(world: ServiceWorld) -> None:
    team = await Team.of(world)
    ada, grace, _ = team.people
    approval_id = await team.refused()
    asked = await team.shown(approval_id)
    assert (asked["approvals_required"], asked["approvals"], asked["status"]) == (2, [], "pending")

    # The same person counts once, and the agent sees who has approved.
    assert [await ada.approve(approval_id) for _ in range(2)] == [303, 303]
    half = await team.shown(approval_id)
    assert ([one["by"]["id"] for one in half["approvals"]], half["status"]) == ([ada.id], "pending")
    assert await team.refused() == approval_id
    page = (await grace.browser.client.get("/dashboard/approvals")).text
    assert "1 of 2 approvals" in page

    assert await grace.approve(approval_id) == 303
    assert (await team.shown(approval_id))["status"] == "approved"
    assert (await team.pay()).status_code == 200
    assert (await team.shown(approval_id))["status"] == "used"
    assert await team.refused() != approval_id
    given = [one.details for one in log(world, "approval.approve") if one.object == approval_id]
    assert [one["approvals"] for one in given] == [2, 1, 1]
    events = (await world.ok("GET", "/v1/events?type=approval.given"))["data"]
    told = [one for one in events if one["approval_id"] == approval_id]
    assert sorted((one["approvals_given"], one["given_by"]["id"]) for one in told) == [(1, ada.id), (2, grace.id)]


async def test_two_at_the_same_moment_count_once_each(world: ServiceWorld) -> None:
    team = await Team.of(world)
    approval_id = await team.refused()
    both = [*team.people[:2], *team.people[:1]]
    assert 303 in await asyncio.gather(*(one.approve(approval_id) for one in both))
    found = await team.shown(approval_id)
    assert (len(found["approvals"]), found["status"]) == (2, "approved")
    paid = await asyncio.gather(*(team.pay() for _ in range(3)))
    assert sorted(one.status_code for one in paid) == [200, 402, 402]


async def test_key_is_not_a_person(world: ServiceWorld) -> None:
    team = await Team.of(world)
    approval_id = await team.refused()
    for key in (None, world.key("operator")):
        answer = await world.call("POST", f"/v1/approvals/{approval_id}/approve", {}, key=key)
        error = error_of(answer, 403, "insufficient_permissions")
        assert "An API key is not a person" in error["message"]
    keyless = Person(world, "Keyless", passkey=False)
    assert await keyless.approve(approval_id) == 403
    # A session that was confirmed in another way than by passkey does not count.
    ada = team.people[0]
    old = update(passkeys).where(passkeys.c.person_id == ada.id).values(last_used_at=now_ms() - 301_000)
    world.service.db.write_now(lambda conn: conn.execute(old))
    answer = await ada.post(f"approvals/{approval_id}/approve")
    assert answer.status_code == 403
    assert "Confirm that it is you" in answer.text
    assert (await team.shown(approval_id))["approvals"] == []


async def test_key_with_the_session_is_not_co_signed(world: ServiceWorld) -> None:
    team = await Team.of(world)
    for key in (team.people[1].key("operator"), team.people[2].key("admin")):
        approval_id = await team.refused(key=key)
        body = {"walletId": team.wallet["wallet_id"], "to": team.to, "amount": "20", "currency": "USDC"}
        simulated = await world.ok(
            "POST", "/v1/payments/simulate", body, key=key, headers={"Session-Token": team.session}
        )
        assert simulated["allowed"] is False
        assert (await team.pay(key, amount="10")).status_code == 200
    assert await team.people[0].approve(approval_id) == 303
    await team.refused(key=key)


@pytest.mark.parametrize("required", [1, 2])
async def test_requester_does_not_count(world: ServiceWorld, required: int) -> None:
    team = await Team.of(world, required=required)
    ada, grace, mary = team.people
    key = ada.key("admin")
    approval_id = await team.refused(key=key)
    answer = await ada.post(f"approvals/{approval_id}/approve")
    assert answer.status_code == 403
    assert "Another person must approve it" in answer.text
    for one in (grace, mary)[:required]:
        assert await one.approve(approval_id) == 303
    assert (await team.shown(approval_id))["status"] == "approved"


async def test_removed_persons_approval_lapses(world: ServiceWorld) -> None:
    team = await Team.of(world)
    ada, grace, mary = team.people
    approval_id = await team.refused()
    assert await ada.approve(approval_id) == 303
    ada.remove()
    assert await grace.approve(approval_id) == 303
    found = await team.shown(approval_id)
    assert ([one["by"]["id"] for one in found["approvals"]], found["status"]) == ([grace.id], "pending")
    assert await mary.approve(approval_id) == 303
    assert (await team.shown(approval_id))["status"] == "approved"
    # It lapses on the chain as well, and another person can replace it.
    mary.remove()
    assert (await team.shown(approval_id))["status"] == "pending"
    assert await team.refused() == approval_id
    assert await Person(world, "Jean").approve(approval_id) == 303
    assert (await team.pay()).status_code == 200


async def test_escrows_and_allowances_need_people_too(world: ServiceWorld) -> None:
    team = await Team.of(world)
    other, key = await world.wallet(), team.people[2].key("admin")
    headers = {"Session-Token": team.session}
    escrow = {
        "fromWallet": team.wallet["wallet_id"],
        "toWallet": other["wallet_id"],
        "amount": "20",
        "currency": "USDC",
        "taskDescription": "Translate",
    }
    allowance = {
        "destination": team.to,
        "delegate": str(Keypair().pubkey()),
        "amount": "20",
    }
    grants = f"/v1/wallets/{team.wallet['wallet_id']}/allowances"
    # An agent's key cannot grant allowances.
    for path, body, keys in (("/v1/payments/a2a", escrow, (team.agent, key)), (grants, allowance, (key,))):
        for by in keys:
            answer = await world.call("POST", path, body, key=by, headers=headers)
            error = error_of(answer, 402, "policy_violation")
            assert (await team.shown(error["approval_id"]))["approvals_required"] == 2
        assert await team.people[0].approve(error["approval_id"]) == 303
        error_of(await world.call("POST", path, body, key=by, headers=headers), 402, "policy_violation")
        assert await team.people[1].approve(error["approval_id"]) == 303
        await world.ok("POST", path, body, key=by, headers=headers)


@pytest.mark.proves("error approvals_missing", "ClonePolicy(approvals)")
async def test_lone_admin_cannot_weaken_the_rule_or_attach_a_weaker_policy(world: ServiceWorld) -> None:
    team = await Team.of(world)
    ada, grace, _ = team.people
    path, vault = f"/v1/policies/{team.policy['policy_id']}", f"/v1/wallets/{team.wallet['wallet_id']}"
    # An admin's key
    for weaker in (None, {"required": 1, "above": "10"}, {"required": 2, "above": "10.01"}):
        error = error_of(await world.call("PATCH", path, {"approvals": weaker}), 403, "insufficient_permissions")
        assert "An API key is not a person" in error["message"]
        clone = await world.ok("POST", f"{path}/clone", {"name": "Weak", "approvals": weaker, "requireCoSign": "10"})
        assert clone["approvals"] == (weaker and {**weaker, "above": clone["approvals"]["above"]})
        for key in (None, world.key("operator")):
            body = {"policyId": clone["policy_id"]}
            error_of(await world.call("PATCH", vault, body, key=key), 403, "insufficient_permissions")
    for preset in ("pol_permissive", "pol_moderate"):
        error_of(await world.call("PATCH", vault, {"policyId": preset}), 403, "insufficient_permissions")
    copy = await world.ok("POST", f"{path}/clone", {"name": "Same"})
    assert copy["approvals"] == team.policy["approvals"]
    await world.ok("PATCH", vault, {"policyId": copy["policy_id"]})
    await world.ok("PATCH", vault, {"policyId": team.policy["policy_id"]})

    # The review says what the people agree to.
    said = "2 people must make it within a day, each by passkey. They agree only to the new approvals."
    for above, says in (("50", True), ("9", False)):
        assert (said in (await ada.change(team.policy, "/review", approvals_above=above)).text) == says
    # One person, several times
    for _ in range(2):
        answer = await ada.change(team.policy, approvals_above="50")
        assert answer.status_code == 422
        assert "1 of 2 people have made it" in answer.text
        there = f"/dashboard/vaults/{team.wallet['wallet_id']}/policy"
        answer = await ada.browser.post(there, {"policy_id": "pol_permissive"}, accept="application/json")
        error_of(answer, 422, "approvals_missing")
    # Another person who makes another change
    assert (await grace.change(team.policy, approvals_above="60")).status_code == 422
    assert (await world.ok("GET", path))["approvals"] == team.policy["approvals"]
    await team.refused()

    # The same change by a second person takes effect, once.
    assert (await grace.change(team.policy, approvals_above="50")).status_code == 303
    assert (await world.ok("GET", path))["approvals"]["above"] == "50.00"
    await world.ok("PATCH", path, {"approvals": _RULE})
    assert (await grace.change(team.policy, approvals_above="50")).status_code == 422
    answer = await grace.post(f"vaults/{team.wallet['wallet_id']}/policy", policy_id="pol_permissive")
    assert answer.status_code == 303, answer.text
    assert (await world.ok("GET", vault))["policy"]["policy_id"] == "pol_permissive"


async def test_authority_alone_can_weaken_the_rule(world: ServiceWorld) -> None:
    team = await Team.of(world)
    vault = f"/v1/wallets/{team.wallet['wallet_id']}"
    waiting = await world.ok("PATCH", f"{vault}?sign=offline", {"policyId": "pol_permissive"})
    assert waiting["status"] == "awaiting_signature"
    assert waiting["signer"] == str(world.service.signers.require_authority().pubkey())
    await team.refused()


async def test_approval_is_bound_to_payee_amount_and_policy(world: ServiceWorld) -> None:
    team = await Team.of(world)
    ada, grace, mary = team.people
    approval_id = await team.refused()
    for one in (ada, grace):
        assert await one.approve(approval_id) == 303
    await team.refused(amount="20.01")
    await team.refused(to=await world.payee())
    # A stricter rule voids approvals under the old one.
    await world.ok("PATCH", f"/v1/policies/{team.policy['policy_id']}", {"approvals": {**_RULE, "required": 3}})
    renewed = await team.refused()
    assert renewed != approval_id
    assert [await one.approve(renewed) for one in (ada, grace)] == [303, 303]
    assert await team.refused() == renewed
    assert await mary.approve(renewed) == 303
    assert (await team.pay()).status_code == 200


@pytest.mark.proves("Approval(reason)", "RejectApproval(reason)", "event approval.reminder")
async def test_agent_learns_the_reason_and_people_are_reminded(world: ServiceWorld) -> None:
    team = await Team.of(world)
    approval_id = await team.refused()
    db, now = world.service.db, world.service.clock.now_ms()
    db.write_now(lambda conn: report_reminders(conn, now, most=10))
    for at in (now, now + LIFETIME // 2, now + LIFETIME // 2 + 1000, now + LIFETIME // 2 + 2000):
        db.write_now(lambda conn, at=at: report_reminders(conn, at, most=1000))  # type: ignore[misc]
    events = (await world.ok("GET", "/v1/events?type=approval.reminder"))["data"]
    assert [one["approval_id"] for one in events].count(approval_id) == 1
    assert await team.people[0].approve(approval_id) == 303
    await world.ok("POST", f"/v1/approvals/{approval_id}/reject", {"reason": "Use the other supplier"})
    found = await team.shown(approval_id)
    assert (found["status"], found["reason"]) == ("rejected", "Use the other supplier")
    events = (await world.ok("GET", "/v1/events?type=approval.decided"))["data"]
    assert [one["reason"] for one in events if one["approval_id"] == approval_id] == [found["reason"]]
    assert await team.people[1].approve(approval_id) == 422
    rows = world.service.db.read_now(lambda conn: conn.execute(select(decisions)).all())
    assert approval_id in {one.subject for one in rows}


async def _put(world: ServiceWorld, policy: Json, **body: Any) -> httpx.Response:
    return await world.call("PATCH", f"/v1/policies/{policy['policy_id']}", body)


@pytest.mark.proves("Approval(outdated)")
async def test_stronger_rule_voids_earlier_approvals(world: ServiceWorld) -> None:
    team = await Team.of(world)
    policy = await world.policy(requireCoSign="10")
    wallet = await world.wallet(policy["policy_id"])
    old = Team(world, team.people, policy, wallet, world.key("agent", wallet["wallet_id"]), "", team.to)
    old.session = await world.session(wallet)
    asked, approved = await old.refused(amount="20"), await old.refused(amount="30")
    operator = world.key("operator")
    given = await world.ok("POST", f"/v1/approvals/{approved}/approve", {}, key=operator)
    assert (given["status"], given["outdated"]) == ("approved", False)

    before = (await world.ok("GET", f"/v1/policies/{policy['policy_id']}"))["version"]
    assert (await _put(world, policy, approvals=_RULE)).json()["version"] > before

    error_of(await world.call("POST", f"/v1/approvals/{asked}/approve", {}, key=operator), 422, "approval_outdated")
    error_of(await old.pay(amount="30"), 402, "policy_violation")
    # The program refuses the approval, too, because it names the version of the policy.
    shown = await world.ok("GET", f"/v1/approvals/{approved}", key=old.agent)
    assert shown["policy_version"] < (await world.ok("GET", f"/v1/policies/{policy['policy_id']}"))["version"]
    listed = (await world.ok("GET", f"/v1/approvals?walletId={wallet['wallet_id']}"))["data"]
    void = {one["approval_id"]: (one["status"], one["outdated"]) for one in (*listed, shown)}
    assert (void[approved], void[asked]) == (("approved", True), ("pending", True))
    page = await team.people[0].browser.client.get("/dashboard/approvals")
    assert "The policy has changed, so it cannot be used" in page.text


async def test_rule_set_and_cleared_at_once_frees_no_vault(world: ServiceWorld) -> None:
    team = await Team.of(world)
    for _ in range(3):
        other = await world.policy(requireCoSign="10")
        attach = {"policyId": other["policy_id"]}
        await asyncio.gather(
            _put(world, other, approvals=_RULE),
            _put(world, other, approvals=None),
            *(world.call("PATCH", f"/v1/wallets/{team.wallet['wallet_id']}", attach) for _ in range(3)),
        )
        policy = (await world.ok("GET", f"/v1/wallets/{team.wallet['wallet_id']}"))["policy"]["policy_id"]
        assert (await world.ok("GET", f"/v1/policies/{policy}"))["approvals"] == {"required": 2, "above": "10.00"}
        error_of(await team.pay(key=world.key("operator")), 402, "policy_violation")


async def test_replayed_change_does_not_clear_a_newer_rule(own_world: ServiceWorld) -> None:
    world = own_world
    await Team.of(world)
    policy = await world.policy(requireCoSign="10")
    earlier = {"approvals": None, "requireCoSign": "5", "idempotencyKey": "earlier"}
    world.line.lose_answers = lambda method: method == "sendTransaction"
    assert (await _put(world, policy, **earlier)).status_code in {200, 503}
    world.line.mend()
    await world.catch_up()
    async with asyncio.timeout(30):
        while (await _put(world, policy, approvals=_RULE)).status_code != 200:  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.1)

    await _put(world, policy, **earlier)

    assert (await world.ok("GET", f"/v1/policies/{policy['policy_id']}"))["approvals"] is not None


async def test_rule_under_change_counts_with_the_old_one(world: ServiceWorld) -> None:
    team = await Team.of(world)
    weaker = {"required": 1, "above": "50"}
    change = policy_details.update().where(policy_details.c.policy_id == team.policy["policy_id"])
    values = {"approvals_next": {"tx_id": "tx_unknown", "rule": weaker}}
    world.service.db.write_now(lambda conn: conn.execute(change.values(values)))

    error_of(await team.pay(amount="20"), 402, "policy_violation")
    other = await world.wallet()
    attach = {"policyId": team.policy["policy_id"]}
    error_of(await world.call("PATCH", f"/v1/wallets/{other['wallet_id']}", attach), 409, "version_conflict")
    # The transaction never existed, so the next change drops the rule.
    assert (await _put(world, team.policy, approvals={"required": 3, "above": "10"})).status_code == 200


async def test_requester_without_a_person_is_refused(world: ServiceWorld) -> None:
    team = await Team.of(world)
    made = await world.ok("POST", "/v1/keys", {"role": "operator", "name": "Without a person"})
    approval_id = await team.refused(key=made["key"])

    assert await team.people[0].approve(approval_id) == 403
    assert (await team.shown(approval_id))["approvals"] == []


async def test_rule_waits_for_the_authoritys_signature(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        for name in ("Ada", "Grace"):
            Person(world, name, "admin")
        policy, other = await world.policy(requireCoSign="10"), await world.wallet()
        hardened = Hardened(world, read_key(tmp_path / "keys" / "authority.json"))
        (tmp_path / "keys" / "authority.json").unlink()
        await world.restart()
        path, attach = f"/v1/policies/{policy['policy_id']}", {"policyId": policy["policy_id"]}

        asked = await hardened.asked("PATCH", path, {"approvals": _RULE})

        wallet = f"/v1/wallets/{other['wallet_id']}"
        assert (await world.ok("GET", path))["approvals"] is None
        error_of(await world.call("PATCH", wallet, attach), 409, "version_conflict")
        again = await world.call("PATCH", f"{path}?sign=offline", {"approvals": {**_RULE, "required": 1}})
        error_of(again, 409, "version_conflict")
        assert (await hardened.sent(asked))["approvals"]["required"] == 2
        await world.ok("PATCH", wallet, attach)

        # A withdrawn change leaves the rule as it was.
        asked = await hardened.asked("PATCH", path, {"approvals": {**_RULE, "above": "5"}})
        await world.ok("DELETE", f"/v1/signed-transactions/{asked['id']}", {})
        assert (await world.ok("GET", path))["approvals"] == {"required": 2, "above": "10.00"}
        await hardened.asked("PATCH", path, {"approvals": {**_RULE, "above": "6"}})
