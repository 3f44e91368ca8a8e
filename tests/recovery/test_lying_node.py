"""A node whose answers are cut, malformed or refusals: 503 with a time to come back, never 500 nor a traceback."""

import contextlib
import json
import random
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable
from app.server.health import Health
from app.submission.recovery import Recovery
from tests.support.escrows import A2A, OUTPUT, agent, of, shows_output, terms
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_RESULTS: list[Any] = [None, 0, -1, 1e308, "text", "", [], {}, [None], [{}], {"value": None}, {"value": [{}]}, True]


class _Liar:
    """Falsifies a part of a node's answers, by a seed."""

    def __init__(self, through: Any, seed: int) -> None:
        self.through = through
        self.share = 0.0
        self._random = random.Random(seed)

    async def __call__(self, body: bytes) -> bytes:
        answer: bytes = await self.through(body)
        if self._random.random() >= self.share:
            return answer
        match self._random.randrange(8):
            case 0:
                raise ChainUnavailable("the node answered 429")
            case 1:
                return answer[: self._random.randrange(len(answer))]
            case 2:
                return b"<html>429 Too Many Requests</html>"
            case 3:
                return self._changed(answer, lambda told: {**told, "result": self._random.choice(_RESULTS)})
            case 4:
                return self._changed(answer, self._refused)
            case 5:
                return answer.replace(b'"slot":', b'"slot":1e400,"was":')
            case 6:
                return answer.replace(b'"', b"'", 3)
            case _:
                return self._changed(answer, self._torn)

    def _changed(self, answer: bytes, change: Any) -> bytes:
        told = json.loads(answer)
        return json.dumps([change(one) for one in told] if isinstance(told, list) else change(told)).encode()

    def _refused(self, told: Any) -> Any:
        code = self._random.choice([-32600, -32601, -32602, -32603, -32005, -32016, 429])
        return {"jsonrpc": "2.0", "id": told["id"], "error": {"code": code, "message": "no"}}

    def _torn(self, value: Any) -> Any:
        """Replace one part deep inside by something of another type."""
        if isinstance(value, dict) and value and self._random.random() < 0.8:
            key = self._random.choice(sorted(value))
            return {**value, key: self._torn(value[key])} if key not in {"id", "jsonrpc"} else value
        if isinstance(value, list) and value and self._random.random() < 0.8:
            at = self._random.randrange(len(value))
            return [*value[:at], self._torn(value[at]), *value[at + 1 :]]
        return self._random.choice(_RESULTS)


@pytest.mark.parametrize("seed", range(3))
async def test_false_answers_are_503_in_every_request(
    own_world: ServiceWorld, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    world = own_world
    await world.restart(confirm_timeout=0.5)
    paying, receiving = await agent(world), await agent(world, funds=None)
    recipients = [str(Pubkey.new_unique()) for _ in range(3)]
    made = await world.policy(maxPerTx="10", allowedRecipients=recipients)
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    liar = _Liar(world.line.through, seed)
    world.line.through = liar
    _app: Any = world.client._transport
    _app.app.state.health = Health(world.service, remember=0.0)
    answers = []

    async def call(method: str, where: str, body: Any = None) -> None:
        answers.append(await world.call(method, where, body))

    for round_ in range(3):
        escrow = await paying.lock(receiving, expectedOutputHash=f"sha256:{OUTPUT}")
        liar.share = 0.25
        answers += [await world.pay(wallet, to, "0.01") for _ in range(3)]
        answers.append(await world.pay(wallet, to, "1000"))
        answers.append(await receiving.call("POST", of(escrow, "complete"), shows_output()))
        answers.append(await paying.call("POST", A2A, terms(paying, receiving, "0.1")))
        await call("POST", f"{path}/fund", {"amount": "1", "currency": "USDC"})
        await call("POST", f"{path}/rotate-token", {})
        await call("PATCH", path, {"status": "frozen" if round_ % 2 else "active"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"maxPerTx": f"{round_ + 1}"})
        await call("PATCH", f"/v1/policies/{made['policy_id']}", {"allowedRecipients": recipients[: round_ % 3 + 1]})
        await call("GET", f"/v1/policies/{made['policy_id']}")
        await call("GET", f"/v1/policies/{made['policy_id']}/audit-log")
        await call("POST", f"/v1/policies/{made['policy_id']}/preview", {"maxPerTx": "1"})
        simulated = {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}
        await call("POST", "/v1/payments/simulate", simulated)
        await call("GET", "/readyz")
        with contextlib.suppress(*Recovery.outages):
            await world.service.part(Recovery).recover()
        with contextlib.suppress(ChainUnavailable):
            await world.keeper().tick()
        liar.share = 0.0
        await world.service.part(Recovery).recover()
        await world.catch_up()

    bad = [one for one in answers if one.status_code >= 500 and one.status_code != 503]
    assert [one.text for one in bad] == []
    unavailable = [one for one in answers if one.status_code == 503]
    assert unavailable
    assert {one.headers.get("retry-after") for one in unavailable} == {"1"}
    assert {one.json()["error"]["code"] for one in unavailable} <= {"chain_unavailable", "not_ready"}
    assert "Traceback" not in "".join(capsys.readouterr())
