"""A distant and slow node, for the `fault_proxy` between two processes."""

import asyncio
import base64
import json

from solders.transaction import VersionedTransaction

from tests.support.faults import Faults, Reply, Through


class SlowNode(Faults):
    """Answers every request late, and delays transactions on their way to the chain even more. Falsifies nothing."""

    def __init__(self, *, answer: float, confirmation: float) -> None:
        """Set the delay of each answer, and the time from sending a transaction until it lands, both in seconds."""
        super().__init__(0)
        self._answer = answer
        self._confirmation = confirmation
        self._landing: set[asyncio.Task[None]] = set()

    async def answer(self, body: bytes, through: Through) -> Reply:
        """Pass a request to the node, and answer after the delay."""
        request = json.loads(body)
        if not isinstance(request, dict) or request["method"] != "sendTransaction":
            answer, _ = await asyncio.gather(through(body), asyncio.sleep(self._answer))
            return Reply(answer)
        task = asyncio.create_task(self._land(body, through))
        self._landing.add(task)
        task.add_done_callback(self._landing.discard)
        await asyncio.sleep(self._answer)
        signature = VersionedTransaction.from_bytes(base64.b64decode(request["params"][0])).signatures[0]
        return Reply(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": str(signature)}).encode())

    async def _land(self, body: bytes, through: Through) -> None:
        await asyncio.sleep(self._confirmation)
        await through(body)
