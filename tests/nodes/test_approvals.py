"""An approval that is decided on two nodes at the same moment: one decision wins, the other is a conflict."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import pytest
from solders.pubkey import Pubkey

from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _asked(world: ServiceWorld) -> str:
    """Ask for the approval of a payment, and return its id."""
    policy = await world.policy(requireCoSign="10")
    wallet = await world.wallet(policy["policy_id"])
    key, session = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
    refused = await world.pay(wallet, await world.payee(), "20", key=key, session=session)
    return str(error_of(refused, 402, "policy_violation")["approval_id"])


async def _decide(world: ServiceWorld, approval_id: str, decision: str) -> Any:
    return await world.call("POST", f"/v1/approvals/{approval_id}/{decision}", {})


async def _shown(world: ServiceWorld, approval_id: str) -> Json:
    await world.catch_up()
    return await world.ok("GET", f"/v1/approvals/{approval_id}")


async def _of(made: Callable[[], Awaitable[object]]) -> None:
    await made()


def _before(patch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[[], Awaitable[object]]) -> None:
    """Have something done once just before a method runs."""
    method = getattr(owner, name)

    async def replaced(*given: Any, **options: Any) -> Any:
        patch.setattr(owner, name, method)
        # A request of its own: it holds none of this one's locks.
        await asyncio.create_task(_of(first), context=Context())
        return await method(*given, **options)

    patch.setattr(owner, name, replaced)


@pytest.mark.parametrize("second_decision", ["reject", "approve"])
async def test_decision_of_another_node_wins_before_an_approval_is_stored(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch, second_decision: str
) -> None:
    approval_id = await _asked(first)
    won: list[Any] = []

    async def decide() -> None:
        won.append(await _decide(second, approval_id, second_decision))

    _before(monkeypatch, first.service.submitter, "_store", decide)
    lost = await _decide(first, approval_id, "approve")

    assert won[0].status_code == 200, won[0].text
    error_of(lost, 409, "idempotency_in_progress")
    shown = await _shown(first, approval_id)
    assert shown["status"] == won[0].json()["status"] == {"reject": "rejected", "approve": "approved"}[second_decision]
    on_chain = await first.service.chain.account(Pubkey.from_string(shown["chain_address"]))
    assert (on_chain is None) == (second_decision == "reject")


async def test_rejection_loses_to_an_approval_that_was_just_stored(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval_id = await _asked(first)
    looked, stored = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        looked.set()
        await stored.wait()

    # The rejecting node has seen that nothing is pending when the approving one stores its attempt, and sends it later.
    _before(monkeypatch, second.service.indexer, "catch_up", wait)
    rejecting = asyncio.create_task(_decide(second, approval_id, "reject"))
    await looked.wait()

    async def reject() -> None:
        stored.set()
        lost.append(await rejecting)

    lost: list[Any] = []
    _before(monkeypatch, first.service.submitter, "_post", reject)
    won = await _decide(first, approval_id, "approve")

    assert won.json()["status"] == "approved", won.text
    error_of(lost[0], 409, "idempotency_in_progress")
    assert (await _shown(second, approval_id))["status"] == "approved"
    # Repeated, the rejection withdraws what was approved, as it always does.
    assert (await _decide(second, approval_id, "reject")).json()["status"] == "rejected"


async def test_approval_that_landed_elsewhere_meanwhile_is_a_conflict(
    first: ServiceWorld, second: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval_id = await _asked(first)

    async def approve() -> None:
        assert (await _decide(second, approval_id, "approve")).status_code == 200

    _before(monkeypatch, first.service.submitter, "_prepare", approve)
    error_of(await _decide(first, approval_id, "approve"), 409, "idempotency_in_progress")
    assert (await _decide(first, approval_id, "approve")).json()["status"] == "approved"
