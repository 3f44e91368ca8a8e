"""Previews of policies: they show what the chain would have done in the past."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from app.core.identifiers import new_reference
from app.core.signers import Signer
from app.core.timestamps import parse_iso_ms
from app.policies import preview as policy_preview
from tests.support.allowances import grant, settle
from tests.support.escrows import agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR, DAY = 3_600, 86_400
BEHIND = 8 * DAY + 6 * HOUR
USDC = 10**6


def _path(made: Json) -> str:
    return f"/v1/policies/{made['policy_id']}/preview"


@pytest_asyncio.fixture(loop_scope="module")
async def earlier(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    """Return a service whose chain is eight days behind."""
    world = ServiceWorld(tmp_path)
    world.clock.ahead = -BEHIND
    async with world:
        yield world


class Vault:
    """A wallet that pays without the service, signed by the operator."""

    def __init__(self, world: ServiceWorld, made: Json) -> None:
        found = world.wallet_record(made["wallet_id"])
        self.world, self.made, self.address = world, made, Pubkey.from_string(found.vault)
        self.policy, self.escrows = Pubkey.from_string(found.policy.address), 0

    @property
    def operator(self) -> Signer:
        return self.world.service.signers.operator

    async def pay(self, to: Pubkey, amount: int) -> bool:
        """Pay, and return whether the policy allows it."""
        return await self._land(
            self._build().execute_payment(
                signer=self.operator.pubkey(),
                policy=self.policy,
                vault=self.address,
                destination=self.world.service.addresses.token_account(to),
                amount=amount,
                reference=new_reference(),
            )
        )

    async def lock(self, to: Pubkey, amount: int) -> OpenEscrow | None:
        """Lock an escrow for a minute; return None when the policy refuses it."""
        payer = self.world.service.signers.fee_payer_address
        escrow = OpenEscrow(self.world.service.addresses.escrow(self.address, self.escrows), self.address, to, payer)
        creation = self._build().create_escrow(
            payer=payer,
            signer=self.operator.pubkey(),
            policy=self.policy,
            vault=self.address,
            receiver=to,
            counter=self.escrows,
            amount=amount,
            reference=new_reference(),
            task_hash=bytes(32),
            proof_kinds=1,
            timeout=60,
        )
        if not await self._land(creation):
            return None
        self.escrows += 1
        return escrow

    async def refund(self, escrow: OpenEscrow) -> None:
        assert await self._land(self._build().refund_escrow(escrow))

    async def switch(self, made: Json) -> None:
        new = Pubkey.from_string(
            self.world.wallet_record(
                (await self.world.wallet(made["policy_id"], funds=None))["wallet_id"],
            ).policy.address
        )
        change = self._build().update_wallet(
            operator=self.operator.pubkey(), vault=self.address, policy=self.policy, new_policy=new
        )
        assert await self._land(change)
        self.policy = new

    def _build(self) -> Any:
        return self.world.build

    async def _land(self, instruction: Instruction) -> bool:
        status = await self.world.land([instruction], self.operator)
        assert status.err is None or 6000 <= (status.custom_error or 0) < 6010
        return status.err is None


@pytest.mark.proves(
    "POST /v1/policies/{policy_id}/preview",
    "PreviewPolicy(maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients, blockedCategories)",
    "PreviewPolicy(requireCoSign, expiry)",
    "PolicyPreview(policy_id, from, to, wallets, payments, newly_blocked, newly_confirmed, changes)",
    "PreviewedPayment(tx_id, wallet_id, type, recipient, amount, timestamp, status, would_be, violation)",
)
@pytest.mark.parametrize(
    "rules",
    [
        {"maxPerTx": "8", "maxPerDay": "11"},
        {"velocityCap": 1, "maxPerMonth": "60", "requireCoSign": "7"},
    ],
)
async def test_preview_tells_what_the_chain_did_to_a_wallet_that_had_the_rules(
    earlier: ServiceWorld, rules: Json
) -> None:
    """Two wallets make the same payments and escrows; one gets the rules seven days before now."""
    world, dice = earlier, random.Random(str(rules))
    to = Pubkey.from_string(await world.payee())
    free, bound = await world.policy(), await world.policy(**rules)
    vaults = [Vault(world, await world.wallet(free["policy_id"], funds="100000")) for _ in range(2)]
    refused: list[int] = []
    open_escrows: list[list[OpenEscrow | None]] = []
    number, judged, left = 0, 0, BEHIND - HOUR
    while left > HOUR:
        step = dice.choice([20 * 60, HOUR, 9 * HOUR])
        if left > 7 * DAY >= left - step - HOUR:
            # Nothing happens close to the start of the judged period.
            await world.later(left - 7 * DAY)
            await vaults[1].switch(bound)
            await world.later(HOUR)
            left = 7 * DAY - HOUR
            continue
        await world.later(step)
        left -= step
        for escrows in open_escrows:
            for vault, escrow in zip(vaults, escrows, strict=True):
                if escrow is not None:
                    await vault.refund(escrow)
        open_escrows = []
        number += 1
        amount = number * 10 + dice.randrange(1, 9) * USDC
        if dice.random() < 0.25:
            open_escrows.append([await vault.lock(to, amount) for vault in vaults])
            assert open_escrows[0][0] is not None
            passed = open_escrows[0][1] is not None
        else:
            assert await vaults[0].pay(to, amount)
            passed = await vaults[1].pay(to, amount)
        judged += left < 7 * DAY
        if not passed:
            refused.append(amount)
    await world.catch_up()

    found = await world.ok("POST", _path(free), rules)

    assert (found["payments"], found["wallets"]) == (judged, 1)
    amounts = [round(float(one["amount"]) * USDC) for one in found["changes"]]
    assert amounts == refused[::-1]
    assert refused
    assert len(refused) < judged
    assert {one["would_be"] for one in found["changes"]} == {"blocked"}
    assert (found["newly_blocked"], found["newly_confirmed"]) == (len(refused), 0)


async def test_allowance_is_held_from_its_grant_and_spent_from_its_settlement(earlier: ServiceWorld) -> None:
    world = earlier
    await world.later(2 * DAY)
    policy = await world.policy(allowAllowances=True)
    one, to = await agent(world, policy["policy_id"]), await world.payee()
    # Two are held longer than a day, and spent in part.
    purses = [await grant(world, one, 4 * USDC) for _ in range(2)]
    await purses[0].pay(3 * USDC)
    await world.later(25 * HOUR)
    paid = [(await world.pay(one.wallet, to, "3")).json()]
    await world.later(60)
    for purse in purses:
        await settle(world, purse)
    # The spent part of the first counts for a day after its settlement, not after its grant.
    await world.later(20 * HOUR)
    paid.append((await world.pay(one.wallet, to, "6")).json())
    await world.later(20 * HOUR)
    paid.append((await world.pay(one.wallet, to, "4")).json())
    await world.catch_up()

    for limit, attempted in (("10", ["11.00"]), ("8", ["11.00", "9.00"])):
        found = await world.ok("POST", _path(policy), {"maxPerDay": limit})
        blocked = {one["tx_id"]: one["violation"]["attempted"] for one in found["changes"]}
        assert blocked == {one["tx_id"]: value for one, value in zip(paid, attempted, strict=False)}


@pytest.mark.proves(
    "PreviewPolicy(maxPerTx, maxPerDay, maxPerMonth, velocityCap, allowedRecipients, blockedCategories)",
    "PreviewPolicy(requireCoSign, expiry)",
    "PolicyPreview(policy_id, from, to, wallets, payments, newly_blocked, newly_confirmed, changes)",
    "PreviewedPayment(tx_id, wallet_id, type, recipient, amount, timestamp, status, would_be, violation)",
)
async def test_preview_shows_both_ways_and_changes_nothing(world: ServiceWorld) -> None:
    made, to, other = await world.policy(maxPerTx="5"), await world.payee(), await world.payee()
    wallet = await world.wallet(made["policy_id"])
    paid = [(await world.pay(wallet, to, amount)).json() for amount in ("1", "2", "3")]
    error_of(await world.pay(wallet, other, "6"), 402, "policy_violation")
    before = await world.accounts(*world.vault_accounts(wallet))

    found = await world.ok("POST", _path(made), {"maxPerTx": "6", "maxPerDay": "5", "name": "Ignored"})

    assert (found["policy_id"], found["wallets"], found["payments"]) == (made["policy_id"], 1, 4)
    assert (found["newly_blocked"], found["newly_confirmed"]) == (1, 0)
    [change] = found["changes"]
    assert change == {
        "tx_id": paid[2]["tx_id"],
        "wallet_id": wallet["wallet_id"],
        "type": "payment",
        "recipient": to,
        "amount": "3.00",
        "status": "confirmed",
        "would_be": "blocked",
        "violation": {"rule": "max_per_day", "limit": "5.00", "attempted": "6.00", "budget_id": None},
        "refusals": None,
        "timestamp": paid[2]["timestamp"],
    }
    assert parse_iso_ms(found["to"]) - parse_iso_ms(found["from"]) == 7 * DAY * 1000
    wider = await world.ok("POST", _path(made), {"maxPerTx": None})
    [change] = wider["changes"]
    assert (change["status"], change["would_be"], change["violation"]) == ("blocked", "confirmed", None)
    assert (wider["newly_blocked"], wider["newly_confirmed"]) == (0, 1)
    same = await world.ok("POST", _path(made), {})
    assert (same["payments"], same["changes"]) == (4, [])
    assert await world.accounts(*world.vault_accounts(wallet)) == before
    assert await world.ok("GET", f"/v1/policies/{made['policy_id']}") == {**made, "wallet_count": 1}


async def test_lists_categories_domains_and_expiry_are_judged_as_of_each_payment(world: ServiceWorld) -> None:
    made = await world.policy()
    wallet = await world.wallet(made["policy_id"])
    shop, betting, stranger = await world.payee(), await world.payee(), await world.payee()
    domain = f"shop-{made['policy_id'][4:12].lower()}.example"
    await world.ok("PUT", f"/v1/recipients/{domain}", {"address": shop})
    await world.ok("PUT", f"/v1/recipients/{betting}", {"category": "gambling"})
    for to in (domain, betting, stranger):
        assert (await world.pay(wallet, to, "1")).json()["status"] == "confirmed"

    async def refused(rules: Json) -> dict[str, str]:
        changes = (await world.ok("POST", _path(made), rules))["changes"]
        return {one["recipient"]: one["violation"]["rule"] for one in changes}

    assert await refused({"allowedRecipients": [domain]}) == dict.fromkeys((betting, stranger), "allowed_recipients")
    many = [str(Keypair().pubkey()) for _ in range(50)]
    assert await refused({"allowedRecipients": [*many, stranger, betting]}) == {domain: "allowed_recipients"}
    assert await refused({"blockedCategories": ["gambling"]}) == {betting: "blocked_categories"}
    assert await refused({"blockedCategories": ["uncategorized"]}) == dict.fromkeys(
        (domain, stranger), "blocked_categories"
    )
    assert await refused({"expiry": "2020-01-01T00:00:00Z"}) == dict.fromkeys((domain, betting, stranger), "expiry")
    assert await refused({"expiry": "2100-01-01T00:00:00Z"}) == {}


async def test_unchanged_rule_shows_nothing_for_a_recipient_registered_anew(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.policy(blockedCategories=["uncategorized"])
    wallet, to, late = await world.wallet(made["policy_id"]), await world.payee(), await world.payee()
    await world.ok("PUT", f"/v1/recipients/{to}", {"category": "subscription"})
    for amount in ("3", "4"):
        assert (await world.pay(wallet, to, amount)).json()["status"] == "confirmed"
    error_of(await world.pay(wallet, late, "1"), 402, "policy_violation")
    await world.later(5)
    await world.ok("PUT", f"/v1/recipients/{to}", {"category": "marketplace"})

    async def changes(rules: Json) -> list[tuple[str, str]]:
        found = (await world.ok("POST", _path(made), rules))["changes"]
        return [(one["amount"], (one["violation"] or {"rule": "none"})["rule"]) for one in found]

    assert await changes({}) == []
    assert await changes({"maxPerTx": "3.50"}) == [("4.00", "max_per_tx")]
    # What did not change still counts towards the day.
    assert await changes({"maxPerDay": "6.50"}) == [("4.00", "max_per_day")]
    assert await changes({"blockedCategories": []}) == [("1.00", "none")]


async def test_co_signed_payments_stay_co_signed(world: ServiceWorld) -> None:
    made, to = await world.policy(requireCoSign="5"), await world.payee()
    wallet = await world.wallet(made["policy_id"])
    token = await world.session(wallet)
    for amount in ("6", "4"):
        assert (await world.pay(wallet, to, amount, session=token)).json()["status"] == "confirmed"

    found = await world.ok("POST", _path(made), {"requireCoSign": "3"})

    assert [(one["amount"], one["violation"]["rule"]) for one in found["changes"]] == [("4.00", "require_co_sign")]


async def test_paused_organisation_gets_a_preview(own_world: ServiceWorld) -> None:
    world = own_world
    made, to = await world.policy(), await world.payee()
    assert (await world.pay(await world.wallet(made["policy_id"]), to, "2")).json()["status"] == "confirmed"
    operator = world.service.signers.operator
    pause = world.build.update_org(signer=operator.pubkey(), paused=True)
    assert (await world.land([pause], operator)).err is None

    assert (await world.ok("POST", _path(made), {"maxPerTx": "1"}))["newly_blocked"] == 1


async def test_preset_without_payments_has_nothing_to_show(world: ServiceWorld) -> None:
    found = await world.ok("POST", "/v1/policies/pol_locked/preview", {"maxPerTx": "1"})

    assert (found["wallets"], found["payments"], found["changes"]) == (0, 0, [])


@pytest.mark.proves("PolicyPreview(wallets_left_out, changes_left_out)")
async def test_preview_leaves_out_whole_wallets_beyond_its_limit(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, to = await world.policy(), await world.payee()
    wallets = [await world.wallet(made["policy_id"]) for _ in range(3)]
    for wallet, count in zip(wallets, (1, 3, 2), strict=True):
        for _ in range(count):
            await world.pay(wallet, to, "1")
    monkeypatch.setattr(policy_preview, "MAX_PAYMENTS", 3)

    found = await world.ok("POST", _path(made), {"maxPerTx": "0"})

    assert (found["wallets"], found["wallets_left_out"], found["payments"]) == (2, 1, 3)
    assert {one["wallet_id"] for one in found["changes"]} == {wallets[0]["wallet_id"], wallets[2]["wallet_id"]}


@pytest.mark.proves("Limits: Previews of an organisation at once")
async def test_previews_beyond_the_limit_are_refused_and_delay_nobody_else(
    own_world: ServiceWorld,
) -> None:
    world, go_on = own_world, asyncio.Event()
    policy, other = await world.policy(), world.key("operator", org=await world.organisation("previews-elsewhere"))
    world.line.hold = lambda method: go_on.wait() if method == "getMultipleAccounts" else None
    ended: list[str] = []

    async def ask(name: str, path: str, **options: Any) -> httpx.Response:
        response = await world.call("POST", path, {"maxPerTx": "2"}, **options)
        ended.append(name)
        return response

    # Given an organisation that asks for more previews than may wait, while the first one runs
    # The last quarter is for keys without a preview.
    keys = [*[world.key("operator")] * (policy_preview.MAX_AT_ONCE + 2), world.key("operator")]
    many = [asyncio.create_task(ask("many", _path(policy), key=key)) for key in keys]
    while len(ended) < 3:  # noqa: ASYNC110 - the refused ones return
        await asyncio.sleep(0.001)
    ended.clear()

    # When another organisation asks and the chain answers
    elsewhere = asyncio.create_task(ask("elsewhere", "/v1/policies/pol_moderate/preview", key=other))
    while len(policy_preview._admission.waiting.held) < 2:  # noqa: ASYNC110 - it waits
        await asyncio.sleep(0.001)
    go_on.set()

    # Then it waits only for the running preview, and a refused request can be repeated
    assert (await elsewhere).status_code == 200
    answers = await asyncio.gather(*many)
    assert ended == ["many", "elsewhere", *["many"] * (policy_preview.MAX_AT_ONCE - 1)]
    refused = [one for one in answers if one.status_code != 200]
    assert len(refused) == 3
    for one in refused:
        error_of(one, 429, "rate_limited")
        assert int(one.headers["retry-after"]) > 0
    assert (await ask("again", _path(policy))).status_code == 200


@pytest.mark.proves("PreviewPolicy(name, maxOpenEscrows)")
async def test_preview_is_for_operators_and_refuses_what_a_change_would(world: ServiceWorld) -> None:
    made = await world.policy()

    assert (await world.call("POST", _path(made), {}, key=world.key("operator"))).status_code == 200
    error_of(await world.call("POST", _path(made), {}, key=world.key("viewer")), 403, "insufficient_permissions")
    error_of(await world.call("POST", _path(made), {"maxPerTx": "x"}), 400, "invalid_amount")
    error_of(await world.call("POST", "/v1/policies/pol_none/preview", {}), 404, "policy_not_found")
