"""A company whose agents have worked for thirty days, as pictures of the dashboard show it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.access.keyring import system
from app.core.actors import Role
from app.core.timestamps import now_ms
from app.people.service import invite
from tests.dashboard.browsing import add_person
from tests.dashboard.estate import Places
from tests.support.escrows import A2A, Agent
from tests.support.service_world import Json, ServiceWorld

_DAYS = 30
_DAY = 86_400
#: Name, and its rules.
_POLICIES = (
    ("Advertising", {"maxPerTx": "120", "maxPerDay": "400", "maxPerMonth": "9000", "velocityCap": 20}),
    ("Research", {"maxPerTx": "25", "maxPerDay": "80", "maxPerMonth": "1500"}),
    ("Travel", {"maxPerTx": "900", "maxPerDay": "1800", "requireCoSign": "300"}),
    (
        "Infrastructure",
        {"maxPerTx": "200", "maxPerDay": "500", "maxPerMonth": "6000", "blockedCategories": ["gambling"]},
    ),
)
#: Label, policy, tags, funds, and the largest usual payment.
_AGENTS = (
    ("Ad buyer", 0, ["marketing", "eu"], "9000", 110),
    ("Newsletter sponsor", 0, ["marketing"], "2500", 60),
    ("Search ads US", 0, ["marketing", "us"], "4000", 90),
    ("Paper reader", 1, ["research"], "400", 9),
    ("Market watcher", 1, ["research", "finance"], "650", 20),
    ("Patent scout", 1, ["research"], "300", 24),
    ("Travel booker", 2, ["operations", "eu"], "12000", 280),
    ("Courier desk", 2, ["operations"], "3000", 70),
    ("Cloud scaler", 3, ["platform"], "7000", 150),
    ("Data licences", 3, ["platform", "finance"], "5000", 190),
    ("Build farm", 3, ["platform"], "2200", 40),
    ("Translation desk", 1, ["support"], "500", 12),
)
#: Domain, category, and what it is paid for.
_SELLERS = (
    ("ads.example.com", "marketplace", "Campaign {}"),
    ("papers.example.org", "subscription", "Article {}"),
    ("flights.example.net", "marketplace", "Booking {}"),
    ("compute.example.io", "subscription", "Invoice {}"),
)
#: Name, limits, and whose agents are in it, by policy.
_BUDGETS = (
    ("Marketing team", {"maxPerDay": "700", "maxPerMonth": "9000", "velocityCap": 60}, 0),
    ("Research", {"maxPerMonth": "4000"}, 1),
    ("Platform", {"maxPerDay": "900", "velocityCap": 30}, 3),
)
_PEOPLE: tuple[tuple[str, Role], ...] = (
    ("Grace Hopper", "operator"),
    ("Katherine Johnson", "viewer"),
)


@asynccontextmanager
async def company(folder: Path) -> AsyncIterator[tuple[ServiceWorld, Places]]:
    """Run the company's service; yields it and what the parameters of the pages' routes stand for."""
    world = ServiceWorld(folder)
    world.clock.ahead = -_DAYS * _DAY
    async with world:
        yield world, await _history(world)


async def _history(world: ServiceWorld) -> Places:
    choice = random.Random(7)
    policies = [await world.policy(name=name, **rules) for name, rules in _POLICIES]
    sellers = [await _seller(world, *one[:2]) for one in _SELLERS]
    agents = [
        await world.wallet(
            policies[policy]["policy_id"], funds, label=label, tags=tags, agentId=label.lower().replace(" ", "-")
        )
        for label, policy, tags, funds, _ in _AGENTS
    ]
    budgets = [await world.ok("POST", "/v1/budgets", {"name": name, **limits}) for name, limits, _ in _BUDGETS]
    for budget, made in zip(budgets, _BUDGETS, strict=True):
        for agent, wallet in zip(_AGENTS, agents, strict=True):
            if agent[1] == made[2]:
                body = {"budgetId": budget["budget_id"]}
                await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", body)
    for day in range(_DAYS):
        for (_, policy, _, _, most), wallet in zip(_AGENTS, agents, strict=True):
            for _ in range(choice.choice((0, 1, 1, 2)) if day % 7 < 5 else choice.choice((0, 0, 1))):
                amount = f"{choice.uniform(0.1, 1) * most:.2f}"
                memo = _SELLERS[policy][2].format(choice.randrange(1000, 9999))
                await world.pay(wallet, sellers[policy], amount, body={"memo": memo})
        await world.later(_DAY - 60 if day < _DAYS - 1 else _DAY / 2)
    world.clock.ahead = 0
    await world.later(0)
    places = await _today(world, agents, sellers)
    _write_people(world)
    await world.catch_up()
    return places | {"budget_id": budgets[0]["budget_id"]}


async def _seller(world: ServiceWorld, domain: str, category: str) -> str:
    address = await world.payee()
    await world.ok("PUT", f"/v1/recipients/{domain}", {"address": address, "category": category})
    return address


async def _today(world: ServiceWorld, agents: list[Json], sellers: list[str]) -> Places:
    """What waits for somebody: refusals, approvals, a dispute, a frozen vault, a webhook."""
    ads, travel, scout = agents[0], agents[6], agents[5]
    for amount in ("95", "88.40", "140", "102.15", "130"):
        await world.pay(ads, sellers[0], amount, body={"memo": "Spring sale"})
    trips = Agent(world, travel, world.key("agent", travel["wallet_id"]), await world.session(travel))
    for amount, memo in (("640", "Conference in Lisbon"), ("415.50", "Team offsite")):
        await world.pay(travel, sellers[2], amount, body={"memo": memo}, session=trips.session, key=trips.key)
    made = [
        await trips.lock(agents[11]["wallet_id"], amount, taskDescription=task)
        for amount, task in (("45", "Translate the travel guide into Portuguese"), ("80", "Transcribe the interviews"))
    ]
    disputed = str(made[0]["escrow_id"])
    await trips.ok("POST", f"{A2A}/{disputed}/dispute", {"reason": "Two chapters are missing from the translation."})
    await world.ok("PATCH", f"/v1/wallets/{scout['wallet_id']}", {"status": "frozen"})
    await world.wallet(
        agents[0]["policy"]["policy_id"], None, label="Podcast sponsor", tags=["marketing"], agentId="podcast"
    )
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://ops.example.com/agent-vault", "events": ["*"]})
    rules = {"balanceLow": {"threshold": "500", "emails": ["finance@example.com"]}, "velocitySpike": {"threshold": 15}}
    await world.ok("PUT", "/v1/alerts", rules)
    for role, name in (("operator", "Billing bot"), ("viewer", "Data warehouse")):
        await world.ok("POST", "/v1/keys", {"role": role, "name": name})
    topup = {"enabled": True, "triggerBelow": "1000", "topupAmount": "2000"}
    await world.ok("PUT", f"/v1/wallets/{ads['wallet_id']}/auto-topup", topup)
    asked = await world.ok("GET", f"/v1/approvals?status=pending&walletId={travel['wallet_id']}")
    [refused] = (await world.ok("GET", f"/v1/wallets/{ads['wallet_id']}/transactions?status=blocked&limit=1"))["data"]
    return {
        "tx_id": refused["tx_id"],
        "approval_id": asked["data"][0]["approval_id"],
        "wallet_id": ads["wallet_id"],
        "policy_id": ads["policy"]["policy_id"],
        "escrow_id": disputed,
        "webhook_id": hook["webhook_id"],
    }


def _write_people(world: ServiceWorld) -> None:
    for name, role in _PEOPLE:
        add_person(world, role, name)
    by = system(world.org, "command_line")
    world.service.db.write_now(lambda conn: invite(conn, by, "Edsger Dijkstra", "operator", now_ms()))
