"""A node that lies and forgets: faults between a service and its chain, drawn from a seed.

The faults deny, cut, delay, repeat, refuse and contradict the node's answers, one at a time. A false answer is
contradicted by the next answer, or by the answer of another method. In addition, all answers withhold some
transactions, and show strangers' transactions in other versions.
"""

import asyncio
import base64
import json
import random
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from solders.signature import Signature

from app.chain.errors import ChainUnavailable
from tests.support.version1 import UNSUPPORTED, as_version_1

Through = Callable[[bytes], Awaitable[bytes]]

#: Values that replace a value of another type.
_GARBAGE: list[Any] = [None, 0, -1, 1e308, "text", "", [], {}, [None], [{}], {"value": None}, {"value": [{}]}, True]
#: Codes of a node's refusals: invalid, unknown, internal, behind, `minContextSlot` not reached, rate limit.
_REFUSALS = (-32600, -32601, -32602, -32603, -32005, -32016, 429)
_TOO_OLD = -32016
_FAILURE = {"InstructionError": [0, {"Custom": 6001}]}
#: Fields to leave alone, because altering them would not make an answer malformed.
_FATES = frozenset({"id", "jsonrpc", "err", "confirmationStatus"})
_WITHHELD = 40
"""While faults last, one transaction in this many is withheld in every answer."""
_PARTS = ("blockTime", "slot", "transaction", "meta")
_PARTS_OF_META = ("innerInstructions", "preTokenBalances", "postTokenBalances", "err")
_KEPT = 40
"""Number of earlier answers to a request that may be repeated."""


Strange = Literal["version 1", "later version", "malformed"]
"""The ways to show a stranger's transaction. "later version" applies only while faults last."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to the caller. If `sent` is a number, the connection breaks after that many bytes of the body."""

    body: bytes
    status: int = 200
    sent: int | None = None


class Faults:
    """Falsifies a share of a node's answers, and counts the faults by kind."""

    def __init__(self, seed: int, *, share: float = 0.0, longest: float = 0.0) -> None:
        """Falsify this share of the answers. `longest` is the longest delay in seconds."""
        self.share = share
        self.longest = longest
        self.requests = 0
        self.counts: Counter[str] = Counter()
        self.seed = seed
        self.random = random.Random(seed)
        self.strange: dict[str, Strange] = {}
        """How strangers' transactions are shown, by signature."""
        self._earlier: dict[str, deque[Any]] = {}

    def strikes(self) -> bool:
        """Draw a random number and return True if the next message is falsified."""
        return self.random.random() < self.share

    async def answer(self, body: bytes, through: Through) -> Reply:
        """Pass a request to the node, or drop it, and return the reply to the caller."""
        self.requests += 1
        request = json.loads(body)
        calls = request if isinstance(request, list) else [request]
        through = self._selecting(through, calls)
        if not self.strikes():
            answer = await through(body)
            self._remember(calls, answer)
            return Reply(answer)
        return await self._struck(body, calls, through)

    async def _struck(self, body: bytes, calls: list[Any], through: Through) -> Reply:
        kind = self.random.choice(["cut", "body", "unavailable", "reset", "delayed", "refused", *["method"] * 6])
        match kind:
            case "unavailable":
                status = self.random.choice([429, 500, 502, 503])
                reached = self.random.random() < 0.5
                self.counts[f"http {status}"] += 1
                if reached:
                    await through(body)
                return Reply(b"<html>No</html>", status)
            case "reset":
                reached = self.random.random() < 0.5
                self.counts["reset after the node" if reached else "reset before the node"] += 1
                if reached:
                    await through(body)
                return Reply(b"", sent=0)
            case "delayed":
                self.counts["delayed"] += 1
                before, pause = self.random.random() < 0.5, self.longest * self.random.random() ** 3
                await asyncio.sleep(pause if before else 0.0)
                answer = await through(body)
                await asyncio.sleep(0.0 if before else pause)
                return Reply(answer)
            case "refused":
                self.counts["refused"] += 1
                return self._told(calls, [self._refusal() for _ in calls], body)
        told = await self._told_by_method(body, calls, through) if kind == "method" else None
        if told is not None:
            return told
        answer = await through(body)
        if kind == "cut":
            self.counts["cut"] += 1
            end = self.random.randrange(len(answer))
            return Reply(answer[:end]) if self.random.random() < 0.5 else Reply(answer, sent=end)
        self.counts["malformed"] += 1
        return Reply(self._malformed(answer))

    async def _told_by_method(self, body: bytes, calls: list[Any], through: Through) -> Reply | None:
        """Return a false reply that is specific to the called method, or None if there is none for it."""
        method, [first, *_] = calls[0]["method"], calls
        if method == "sendTransaction":
            if self.random.random() < 0.5:
                self.counts["accepted and dropped"] += 1
                # The transaction's signatures follow their count, which takes one byte. The first one is returned.
                signature = Signature.from_bytes(base64.b64decode(first["params"][0])[1:65])
                return self._told(calls, [{"result": str(signature)}], body)
            self.counts["forwarded and refused"] += 1
            await through(body)
            return self._told(calls, [self._refusal()], body)
        if self.random.random() < 0.4 and (stale := self._stale(calls)) is not None:
            self.counts["stale"] += 1
            return self._told(calls, stale, body)
        lies = {
            "getSignatureStatuses": [self._without_statuses, self._without_statuses, self._with_failures],
            "getTransaction": [self._without, self._without_part],
            "getSignaturesForAddress": [self._shortened],
            "getBlock": [self._without_signatures],
        }.get(method)
        if lies is None:
            return None
        lie = self.random.choice(lies)
        answers = _parsed(await through(body))
        if answers is None or any("result" not in one for one in answers):
            return None
        self.counts[f"{method} {lie.__name__.strip('_').replace('_', ' ')}"] += 1
        return self._told(calls, [{"result": lie(one["result"])} for one in answers], body)

    def _without_statuses(self, result: Any) -> Any:
        share = self.random.choice([0.3, 1.0])
        return {**result, "value": [None if self.random.random() < share else one for one in result["value"]]}

    def _with_failures(self, result: Any) -> Any:
        """Return the statuses, each with a false failure that its transaction does not show."""
        return {**result, "value": [None if one is None else {**one, "err": _FAILURE} for one in result["value"]]}

    def _without_signatures(self, result: Any) -> Any:
        return result and {**result, "signatures": self._shortened(result.get("signatures") or [])}

    def _without(self, result: Any) -> Any:
        return None if self.random.random() < 0.7 else result

    def _without_part(self, result: Any) -> Any:
        """Return a transaction without one of its parts, like a node that has not recorded it."""
        if not isinstance(result, dict):
            return result
        if self.random.random() < 0.3:
            return {**result, self.random.choice(_PARTS): None}
        part = self.random.choice(_PARTS_OF_META)
        if part != "err":
            return {**result, "meta": {**result["meta"], part: None}}
        return {**result, "meta": {name: value for name, value in result["meta"].items() if name != part}}

    def _selecting(self, through: Through, calls: list[Any]) -> Through:
        """Return a wrapper of `through` that alters responses to `getTransaction`.

        The wrapper withholds some transactions, and shows others malformed or in another version.
        """

        async def answer(body: bytes) -> bytes:
            told = await through(body)
            signatures = {call["id"]: call for call in calls if call["method"] == "getTransaction"}
            return (
                self._changed(told, lambda one: self._selected(signatures.get(one["id"]), one)) if signatures else told
            )

        return answer

    def _selected(self, call: Any, told: Any) -> Any:
        if call is None or not told.get("result"):
            return told
        signature, options = call["params"]
        if self.share and zlib.crc32(f"{self.seed}{signature}".encode()) % _WITHHELD == 0:
            self.counts["withheld"] += 1
            return {**told, "result": None}
        match self.strange.get(signature):
            case "version 1":
                self.counts["shown in version 1"] += 1
                if options["maxSupportedTransactionVersion"] < 1:
                    return {"jsonrpc": "2.0", "id": call["id"], "error": UNSUPPORTED}
                data = as_version_1(base64.b64decode(told["result"]["transaction"][0]))
            case "later version" if self.share:
                self.counts["shown in a later version"] += 1
                data = bytes([0x82])
            case "malformed":
                self.counts["shown malformed"] += 1
                data = b"\x01"
            case _:
                return told
        return {**told, "result": {**told["result"], "transaction": [base64.b64encode(data).decode(), "base64"]}}

    def _shortened(self, result: list[Any]) -> list[Any]:
        match self.random.randrange(3):
            case 0:
                return []
            case 1:  # without the newest
                return result[self.random.randint(0, len(result)) :]
            case _:
                return [one for one in result if self.random.random() < 0.5]

    def _refusal(self) -> Any:
        return {"error": {"code": self.random.choice(_REFUSALS), "message": "no"}}

    def _remember(self, calls: list[Any], answer: bytes) -> None:
        answers = _parsed(answer)
        for call, told in zip(calls, answers or (), strict=False):
            if "result" in told:
                key = json.dumps([call["method"], *_without_floor(call["params"])])
                self._earlier.setdefault(key, deque(maxlen=_KEPT)).append(told["result"])

    def _stale(self, calls: list[Any]) -> list[Any] | None:
        """Return earlier answers to these calls. Like a stale node, refuses calls that name a slot it has not seen."""
        stale = []
        for call in calls:
            earlier = self._earlier.get(json.dumps([call["method"], *_without_floor(call["params"])]))
            if not earlier:
                return None
            result = earlier[self.random.randrange(len(earlier))]
            floor = next((one.get("minContextSlot", 0) for one in call["params"] if isinstance(one, dict)), 0)
            slot = result["context"]["slot"] if isinstance(result, dict) and "context" in result else floor
            behind = {"error": {"code": _TOO_OLD, "message": "Minimum context slot has not been reached"}}
            stale.append(behind if slot < floor else {"result": result})
        return stale

    def _told(self, calls: list[Any], answers: list[Any], body: bytes) -> Reply:
        told = [{"jsonrpc": "2.0", "id": call["id"], **one} for call, one in zip(calls, answers, strict=True)]
        return Reply(json.dumps(told if body.lstrip()[:1] == b"[" else told[0]).encode())

    def _malformed(self, answer: bytes) -> bytes:
        match self.random.randrange(5):
            case 0:
                return b"<html>429 Too Many Requests</html>"
            case 1:
                return answer.replace(b'"slot":', b'"slot":1e400,"was":')
            case 2:
                return answer.replace(b'"', b"'", 3)
            case 3:
                return self._changed(answer, lambda told: {**told, "result": self.random.choice(_GARBAGE)})
            case _:
                return self._changed(answer, self._torn)

    def _changed(self, answer: bytes, change: Callable[[Any], Any]) -> bytes:
        told = json.loads(answer)
        return json.dumps([change(one) for one in told] if isinstance(told, list) else change(told)).encode()

    def _torn(self, value: Any) -> Any:
        """Replace one part deep inside an answer with a value of another type."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            key = self.random.choice(sorted(value))
            return value if key in _FATES else {**value, key: self._torn(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.8:
            at = self.random.randrange(len(value))
            return [*value[:at], self._torn(value[at]), *value[at + 1 :]]
        return self.random.choice(_GARBAGE)


class FaultyTransport:
    """A transport with faults, for a service in the same process."""

    def __init__(self, through: Through, faults: Faults) -> None:
        self.through = through
        self.faults = faults

    async def __call__(self, body: bytes) -> bytes:
        """Return the answer's body. Raises `ChainUnavailable` like `HttpTransport`."""
        reply = await self.faults.answer(body, self.through)
        if reply.sent is not None or reply.status != 200:
            raise ChainUnavailable("the node does not answer")
        return reply.body


def _parsed(answer: bytes) -> list[Any] | None:
    told = json.loads(answer)
    return told if isinstance(told, list) else [told]


def _without_floor(params: list[Any]) -> list[Any]:
    return [
        {name: value for name, value in one.items() if name != "minContextSlot"} if isinstance(one, dict) else one
        for one in params
    ]
