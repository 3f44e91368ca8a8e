"""An organisation that has given texts wherever somebody may write one."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import quote

from app.access.keyring import system
from app.core.timestamps import now_ms
from app.people.service import invite
from app.webhooks import slack
from app.webhooks.models import SaveSlackChannel
from app.webhooks.slack import MAX_CHANNELS
from tests.dashboard.browsing import add_person
from tests.support.escrows import A2A, agent
from tests.support.service_world import Json, ServiceWorld, error_of

#: Strings in the text of an escrow, of which a page shows only ten.
_TOGETHER = 6
_MAX_WEBHOOKS = 50
Places = dict[str, str]
T = TypeVar("T")


async def furnish(world: ServiceWorld, texts: Sequence[str]) -> Places:
    """Write the texts into every field, and return what the parameters of the pages' routes stand for.

    A field either takes a text or refuses it with 400 and the envelope of errors.
    """
    policy = await world.policy(name="Ads", maxPerDay="900", requireCoSign="50")
    main = await agent(world, policy["policy_id"])
    wallet_id, payee = main.id, await world.payee()
    wallet_names = {"label": "Ad buyer", "tags": list(texts[:32])}
    await world.ok("PATCH", f"/v1/wallets/{wallet_id}", wallet_names)
    wallets = [
        {"agentId": text, "label": text, "tags": [text], "policyId": policy_id}
        for text, policy_id in zip(texts, await _policies(world, texts), strict=True)
    ]
    await _all(world.ok("POST", "/v1/wallets", one) for one in wallets)
    escrows = await _all(
        main.call("POST", A2A, _escrow(wallet_id, payee, " | ".join(texts[first : first + _TOGETHER])))
        for first in range(0, len(texts), _TOGETHER)
    )
    dispute = [one.json()["escrow_id"] for one in escrows]
    await _all(
        main.ok("POST", f"{A2A}/{one}/dispute", {"reason": " | ".join(texts[first : first + _TOGETHER])})
        for one, first in zip(dispute, range(0, len(texts), _TOGETHER), strict=True)
    )
    await _all(world.pay(main.wallet, payee, "0.01", body={"memo": text}) for text in texts)
    await _all(
        world.pay(main.wallet, payee, f"60.{number:02}", body={"memo": text}, session=main.session, key=main.key)
        for number, text in enumerate(texts[:9], start=10)
    )
    budget = await world.ok("POST", "/v1/budgets", {"name": "Team", "maxPerDay": "1000"})
    await world.ok("PATCH", f"/v1/wallets/{wallet_id}", {"budgetId": budget["budget_id"]})
    await _all(world.ok("POST", "/v1/budgets", {"name": text}) for text in texts)
    await _all(world.ok("POST", "/v1/keys", {"role": "viewer", "name": text}) for text in texts)
    await _all(_refused_or_taken(world, *one) for text in texts for one in _picky(text, wallet_id, payee))
    webhooks = await _webhooks(world, texts)
    _write_people(world, texts)
    for text in texts[:MAX_CHANNELS]:
        channel = SaveSlackChannel(name=text, url="https://hooks.slack.com/services/T0/B0/secret")
        await slack.save(world.service, system(world.org, "estate"), channel)
    await world.catch_up()
    asked = await world.ok("GET", f"/v1/approvals?status=pending&walletId={wallet_id}")
    [refused] = (await world.ok("GET", "/v1/transactions?status=blocked&type=payment&limit=1"))["data"]
    return {
        "tx_id": refused["tx_id"],
        "approval_id": asked["data"][0]["approval_id"],
        "wallet_id": wallet_id,
        "escrow_id": dispute[0],
        "webhook_id": webhooks[0],
        "policy_id": policy["policy_id"],
        "budget_id": budget["budget_id"],
    }


def _escrow(wallet_id: str, payee: str, task: str) -> Json:
    return {"fromWallet": wallet_id, "toWallet": payee, "amount": "0.1", "currency": "USDC", "taskDescription": task}


async def _policies(world: ServiceWorld, texts: Sequence[str]) -> list[str]:
    made = await _all(world.ok("POST", "/v1/policies", {"name": text, "maxPerTx": "5"}) for text in texts)
    return [one["policy_id"] for one in made]


def _picky(text: str, wallet_id: str, payee: str) -> Iterable[tuple[str, str, Json]]:
    """Requests with the text where it may be refused."""
    money = {"amount": "0.01", "currency": "USDC"}
    yield "PUT", f"/v1/recipients/{quote(text.replace('/', '-'))}", {"address": payee}
    yield "PUT", f"/v1/recipients/{payee}", {"address": payee, "category": text}
    yield "POST", "/v1/payments", {"walletId": wallet_id, "to": text, **money}
    yield "POST", f"/v1/wallets/{wallet_id}/pay", {"recipient": text, **money}
    yield "POST", "/v1/x402/quote", {"walletId": wallet_id, "url": text}
    yield "POST", "/v1/x402/quote", {"walletId": wallet_id, "url": "https://x.invalid", "method": text}
    yield "PUT", "/v1/alerts", {"policyViolation": {"enabled": True, "emails": [f"{text}@example.com"]}}
    yield "PUT", "/v1/alerts", {text: {"enabled": True}}
    yield "POST", "/v1/policies", {"name": "Hosts", "x402Hosts": [text]}
    yield "POST", "/v1/policies", {"name": "Rules", "allowedRecipients": [text]}
    yield "POST", "/v1/policies", {"name": "Rules", "blockedCategories": [text]}
    yield "POST", A2A, {**_escrow(wallet_id, text, "Task")}
    yield "POST", A2A, {**_escrow(wallet_id, payee, "Task"), "expectedOutputHash": text}
    yield "POST", "/v1/webhooks", {"url": text, "events": ["*"]}
    yield "POST", "/v1/webhooks", {"url": "https://example.com", "events": [text]}


async def _refused_or_taken(world: ServiceWorld, method: str, path: str, body: Json) -> None:
    answer = await world.call(method, path, body)
    if answer.status_code != 200:
        error_of(answer, 400, answer.json()["error"]["code"])


async def _webhooks(world: ServiceWorld, texts: Sequence[str]) -> list[str]:
    """Register each text in the path of an address, several in one: an organisation has at most fifty webhooks."""
    made = [
        await world.call(
            "POST", "/v1/webhooks", {"url": f"https://example.com/{'/'.join(some)}", "events": ["export.ready"]}
        )
        for some in (texts[number::_MAX_WEBHOOKS] for number in range(_MAX_WEBHOOKS))
    ]
    return [one.json()["webhook_id"] for one in made if one.status_code == 200]


def _write_people(world: ServiceWorld, texts: Sequence[str]) -> None:
    """Store people and invitations of these names."""
    now, by = now_ms(), system(world.org, "estate")
    for text in texts:
        add_person(world, "viewer", text)
        world.service.db.write_now(lambda conn, name=text: invite(conn, by, name, "viewer", now))  # type: ignore[misc]


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    return await asyncio.gather(*work)
