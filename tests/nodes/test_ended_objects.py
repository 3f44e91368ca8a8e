"""A request that loses a race against an archiving or a settlement on another node gets the error of that end."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.support.escrows import A2A, agent, of, shows_output, signs_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _overtaken(node: ServiceWorld, request: Awaitable[httpx.Response], end: Awaitable[object]) -> httpx.Response:
    """Return the answer of a request on a node that reads its object before the `end` and simulates after it."""
    ended, simulates = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        simulates.set()
        await ended.wait()

    node.line.hold = lambda method: held() if method == "simulateTransaction" else None
    task = asyncio.ensure_future(request)
    async with asyncio.timeout(30):
        await simulates.wait()
    await end
    node.line.hold = lambda _method: None
    ended.set()
    return await task


Ask = Callable[[ServiceWorld, Json, str], Awaitable[httpx.Response]]


def _patch(**body: object) -> Ask:
    return lambda node, wallet, _to: node.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", body)


def _post(step: str, **body: object) -> Ask:
    return lambda node, wallet, _to: node.call("POST", f"/v1/wallets/{wallet['wallet_id']}/{step}", body)


def _batch(node: ServiceWorld, wallet: Json, _to: str) -> Awaitable[httpx.Response]:
    return node.call(
        "POST", "/v1/wallets/fund-batch", {"allocations": [{"walletId": wallet["wallet_id"], "amount": "1"}]}
    )


def _escrow(node: ServiceWorld, wallet: Json, to: str) -> Awaitable[httpx.Response]:
    body = {
        "fromWallet": wallet["wallet_id"],
        "toWallet": to,
        "amount": "1",
        "currency": "USDC",
        "taskDescription": "x",
    }
    return node.call("POST", A2A, body)


def _archive(node: ServiceWorld, wallet: Json, _to: str) -> Awaitable[httpx.Response]:
    return node.call("DELETE", f"/v1/wallets/{wallet['wallet_id']}")


_ASKS: dict[str, Ask] = {
    "pay": lambda node, wallet, to: node.pay(wallet, to, "1"),
    "simulate": lambda node, wallet, to: node.call(
        "POST", "/v1/payments/simulate", {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}
    ),
    "escrow": _escrow,
    "fund": _post("fund", amount="1"),
    "fund_batch": _batch,
    "rotate": _post("rotate-token"),
    "freeze": _patch(status="frozen"),
    "policy": _patch(policyId="pol_moderate"),
    "freeze_with_policy": _patch(policyId="pol_moderate", status="frozen"),
    "archive": _archive,
}


@pytest.mark.parametrize("name", _ASKS)
async def test_request_overtaken_by_an_archiving_is_told_so(
    first: ServiceWorld, second: ServiceWorld, name: str
) -> None:
    wallet, to = await first.wallet(funds=None), await first.payee()
    if name == "pay":
        await first.session(wallet)

    answer = await _overtaken(
        second, _ASKS[name](second, wallet, to), first.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}")
    )

    error_of(answer, 422, "wallet_archived")


async def test_escrow_to_a_wallet_that_is_archived_concurrently_is_told_so(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    paying, receiving = await agent(first), await first.wallet(funds=None)

    request = second.call("POST", A2A, terms(paying, receiving["wallet_id"]))
    answer = await _overtaken(second, request, first.ok("DELETE", f"/v1/wallets/{receiving['wallet_id']}"))

    error_of(answer, 422, "wallet_archived")


async def test_update_with_a_policy_that_is_deleted_concurrently_is_told_so(
    first: ServiceWorld, second: ServiceWorld
) -> None:
    wallet, policy = await first.wallet(funds=None), await first.policy(maxPerTx="1")
    path = f"/v1/policies/{policy['policy_id']}"

    request = second.call("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"policyId": policy["policy_id"]})
    answer = await _overtaken(second, request, first.ok("DELETE", path))

    error_of(answer, 404, "policy_not_found")


@pytest.mark.parametrize("step", ["complete", "complete_signed", "dispute", "resolve", "withdraw"])
async def test_step_overtaken_by_a_settlement_is_told_so(first: ServiceWorld, second: ServiceWorld, step: str) -> None:
    paying, receiving = await agent(first), await agent(first)
    escrow = await paying.lock(receiving)
    if step in {"resolve", "withdraw"}:
        await paying.ok("POST", of(escrow, "dispute"), {"reason": "late"})
        end = first.ok("POST", of(escrow, "resolve"), {"decision": "refund"})
    else:
        end = receiving.ok("POST", of(escrow, "complete"), shows_output())
    asked = {
        "complete": ("complete", shows_output()),
        "complete_signed": ("complete", signs_output(first, escrow, "signed_attestation", receiving.session_key)),
        "dispute": ("dispute", {"reason": "late"}),
        "resolve": ("resolve", {"decision": "refund"}),
        "withdraw": ("dispute/withdraw", {}),
    }
    path, body = asked[step]

    answer = await _overtaken(second, second.call("POST", of(escrow, path), body), end)

    error_of(answer, 422, "escrow_already_settled")
