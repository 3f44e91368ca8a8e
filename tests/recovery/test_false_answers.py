"""A node that shows no accounts, or refuses without a program that did: nothing is refused for good because of it."""

import pytest
from solders.keypair import Keypair

from tests.support.lies import LIES
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("lie", LIES)
async def test_no_request_is_refused_because_a_node_lies(own_world: ServiceWorld, lie: str) -> None:
    # Given requests that the chain permits
    world = own_world
    wallet, frozen, to = await world.wallet(), await world.wallet(), await world.payee()
    await world.ok("PATCH", f"/v1/wallets/{frozen['wallet_id']}", {"status": "frozen"})
    used, unused = await world.policy(maxPerTx="10", allowedRecipients=[to]), await world.policy()
    budget = await world.ok("POST", "/v1/budgets", {"name": "Team", "maxPerDay": "5"})
    own, other = f"/v1/wallets/{wallet['wallet_id']}", f"/v1/wallets/{frozen['wallet_id']}"
    policy, sum_ = f"/v1/policies/{used['policy_id']}", {"amount": "1", "currency": "USDC"}
    payment = {"walletId": wallet["wallet_id"], "to": to, **sum_}
    requests: list[tuple[str, str, Json]] = [
        ("POST", "/v1/payments", {**payment, "to": str(Keypair().pubkey())}),
        ("POST", "/v1/organization/pause", {"paused": False}),
        ("PATCH", other, {"status": "active"}),
        ("PATCH", policy, {"maxPerTx": "3"}),
        ("PATCH", policy, {"allowedRecipients": []}),
        ("POST", f"{policy}/clone", {"name": "Another"}),
        ("POST", f"{policy}/preview", {"maxPerTx": "1"}),
        ("POST", "/v1/policies", {"name": "New"}),
        ("DELETE", f"/v1/policies/{unused['policy_id']}", {}),
        ("PATCH", own, {"policyId": used["policy_id"]}),
        ("PATCH", own, {"budgetId": budget["budget_id"]}),
        ("PATCH", f"/v1/budgets/{budget['budget_id']}", {"maxPerDay": "6"}),
        ("POST", "/v1/budgets", {"name": "Other", "maxPerDay": "5"}),
        ("POST", f"{own}/fund", sum_),
        ("POST", f"{own}/withdraw", sum_),
        ("POST", f"{own}/rotate-token", {}),
        ("POST", "/v1/wallets", {"agentId": "new", "label": "New", "policyId": used["policy_id"]}),
        ("POST", "/v1/payments/simulate", payment),
        ("POST", "/v1/payments", payment),
        ("PUT", f"/v1/recipients/{to}", {"category": "crypto_exchange"}),
        ("DELETE", other, {}),
    ]

    # When the node lies
    world.line.alter = LIES[lie]
    answers = [await world.call(method, path, body or None) for method, path, body in requests]
    world.line.mend()

    # Then each is carried out, or it is not known what becomes of it
    refused = [
        (method, path, answer.text)
        for (method, path, _), answer in zip(requests, answers, strict=True)
        if answer.status_code not in {200, 503}
    ]
    assert refused == []
