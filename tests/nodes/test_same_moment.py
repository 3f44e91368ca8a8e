"""The same request on two nodes at the same moment: one carries it out, and the other gets its answer, no refusal."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import func, select

from app.store.approval_requests import table as approval_requests
from app.store.attempts import table as attempts
from app.submission.claim import Claim, Fingerprint
from app.submission.idempotency import Idempotency
from app.submission.plan import Outcome, Plan
from tests.nodes.test_idempotency import held_back
from tests.support.escrows import OUTPUT, agent, of, shows_output
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Request = tuple[str, str, Json | None, dict[str, str]]


def _payment(wallet: Json, to: str, amount: str = "1") -> tuple[str, str, Json]:
    return "POST", "/v1/payments", {"walletId": wallet["wallet_id"], "to": to, "amount": amount, "currency": "USDC"}


async def _limited_payment(world: ServiceWorld) -> Request:
    policy = await world.policy(velocityCap=1)
    wallet = await world.wallet(policy["policy_id"], funds="5")
    return *_payment(wallet, await world.payee()), {}


async def _whole_balance(world: ServiceWorld) -> Request:
    return *_payment(await world.wallet(funds="5"), await world.payee(), "5"), {}


async def _approved_payment(world: ServiceWorld) -> Request:
    policy = await world.policy(requireCoSign="1")
    paying = await agent(world, policy["policy_id"])
    to = await world.payee()
    headers = {"Session-Token": paying.session, "Authorization": f"Bearer {paying.key}"}
    asked = error_of(await world.call(*_payment(paying.wallet, to, "2"), headers=headers), 402, "policy_violation")
    await world.ok("POST", f"/v1/approvals/{asked['approval_id']}/approve", {})
    return *_payment(paying.wallet, to, "2"), headers


async def _withdrawal(world: ServiceWorld) -> Request:
    wallet = await world.wallet(funds="5")
    return "POST", f"/v1/wallets/{wallet['wallet_id']}/withdraw", {"amount": "all", "currency": "USDC"}, {}


async def _new_wallet(_world: ServiceWorld) -> Request:
    return "POST", "/v1/wallets", {"agentId": "same moment", "label": "Agent", "policyId": "pol_moderate"}, {}


async def _archived_wallet(world: ServiceWorld) -> Request:
    wallet = await world.wallet(funds=None)
    return "DELETE", f"/v1/wallets/{wallet['wallet_id']}", None, {}


async def _completed_escrow(world: ServiceWorld) -> Request:
    paying, receiving = await agent(world), await agent(world, funds=None)
    made = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")
    headers = {"Session-Token": receiving.session, "Authorization": f"Bearer {receiving.key}"}
    return "POST", of(made, "complete"), shows_output(), headers


async def _changed_policy(world: ServiceWorld) -> Request:
    made = await world.policy(maxPerTx="5")
    path = f"/v1/policies/{made['policy_id']}"
    tag = (await world.call("GET", path)).headers["etag"]
    return "PATCH", path, {"maxPerTx": "6"}, {"If-Match": tag}


async def _deleted_policy(world: ServiceWorld) -> Request:
    return "DELETE", f"/v1/policies/{(await world.policy())['policy_id']}", None, {}


_REQUESTS: dict[str, Callable[[ServiceWorld], Awaitable[Request]]] = {
    "payment up to the velocity cap": _limited_payment,
    "payment of the whole balance": _whole_balance,
    "payment by an approval": _approved_payment,
    "withdrawal of all": _withdrawal,
    "new wallet": _new_wallet,
    "archived wallet": _archived_wallet,
    "completed escrow": _completed_escrow,
    "changed policy": _changed_policy,
    "deleted policy": _deleted_policy,
}


@contextmanager
def _held_at_the_start(node: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Event, ...]]:
    """Hold a node's next request once it has found its key free; yields what says so and what lets it go on."""
    begun, go = asyncio.Event(), asyncio.Event()
    found = Idempotency._claim

    async def hold(self: Idempotency, fingerprint: Fingerprint, record: Any) -> Claim:
        claim = await found(self, fingerprint, record)
        if self is node.service.part(Idempotency):
            begun.set()
            await go.wait()
        return claim

    with monkeypatch.context() as patch:
        patch.setattr(Idempotency, "_claim", hold)
        yield begun, go


def _refusals(world: ServiceWorld) -> tuple[int, int]:
    """How many refusals and requests for approval there are."""
    blocked = select(func.count()).select_from(attempts).where(attempts.c.status == "blocked")
    asked = select(func.count()).select_from(approval_requests)
    return world.service.db.read_now(lambda conn: (conn.scalar(blocked) or 0, conn.scalar(asked) or 0))


@pytest.mark.parametrize("name", _REQUESTS)
async def test_request_that_another_node_carried_out_meanwhile_gets_its_answer(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, path, body, headers = await _REQUESTS[name](first)
    options: dict[str, Any] = {"headers": {**headers, "Idempotency-Key": name}}
    refused = _refusals(first)
    with _held_at_the_start(second, monkeypatch) as (begun, go):
        late = asyncio.create_task(second.call(method, path, body, **options))
        await begun.wait()
        done = await first.call(method, path, body, **options)
        go.set()
        answer = await late

    assert done.status_code == 200, done.text
    assert (answer.status_code, answer.json()) == (200, done.json())
    assert _refusals(first) == refused


async def test_request_waits_for_the_one_that_claimed_its_key_first(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await first.wallet(), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "claimed"}}
    with _held_at_the_start(second, monkeypatch) as (begun, go):
        late = asyncio.create_task(second.call(*_payment(wallet, to), **options))
        await begun.wait()
        sent, end = held_back(first, monkeypatch)
        paying = asyncio.create_task(first.call(*_payment(wallet, to), **options))
        await sent.wait()
        go.set()
        await asyncio.sleep(0)
        end.set()

    assert (await late).json() == (await paying).json()
    assert await first.balance(to) == 1_000_000


async def test_request_is_judged_anew_once_the_one_with_its_key_was_refused(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, to = await first.wallet(funds="1"), await first.payee()
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "refused"}}
    with _held_at_the_start(second, monkeypatch) as (begun, go):
        late = asyncio.create_task(second.call(*_payment(wallet, to, "2"), **options))
        await begun.wait()
        error_of(await first.call(*_payment(wallet, to, "2"), **options), 422, "wallet_insufficient_balance")
        go.set()
        error_of(await late, 422, "wallet_insufficient_balance")


async def test_agent_whose_wallet_another_node_is_making_has_one_already(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a node that is about to make a wallet, and whose chain has not confirmed yet what another one sends
    body = {"agentId": "twice", "label": "Agent", "policyId": "pol_moderate"}
    begun, go = asyncio.Event(), asyncio.Event()
    submitter, send = second.service.submitter, second.service.submitter.send

    async def hold(plan: Plan, claim: Claim) -> Outcome:
        begun.set()
        await go.wait()
        return await send(plan, claim)

    async def unconfirmed(_address: object, **_options: object) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(submitter, "send", hold)
        patch.setattr(second.service.chain, "account", unconfirmed)
        late = asyncio.create_task(second.call("POST", "/v1/wallets", body))
        await begun.wait()

        await first.ok("POST", "/v1/wallets", body)
        go.set()

        error_of(await late, 409, "wallet_agent_id_conflict")
