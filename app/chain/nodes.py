"""Combines several nodes of one chain into a single transport."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog
from pydantic_core import from_json

from app.chain.errors import ChainUnavailable, RateLimited, RpcError
from app.chain.identity import WrongChainError
from app.chain.rpc import Rpc, whole
from app.chain.transport import HttpTransport, Transport

_log = structlog.get_logger(__name__)

_LOOK_EVERY = 1.0
"""Seconds between two polls of all nodes for their newest slot."""
_SAME_EVERY = 10.0
"""Minimum seconds between two checks of a node's genesis hash."""
_PATIENCE = 2.0
"""Seconds to wait for a node's slot, or for its response if other nodes are available. A slower node is skipped."""
_CLOSE = 4
"""Number of slots that the current node may lag behind the freshest node. The tolerance avoids frequent changes of the
current node.
"""
_MOST_AHEAD, _MOST_A_SECOND = 10_000, 1_000
"""Maximum number of slots that the chain can have added since the last seen slot: a constant plus a number per second.
"""
_PARTS = ("innerInstructions", "preTokenBalances", "postTokenBalances")
"""Parts of a successful transaction's `meta`. If a part is null, this node has not recorded it. Another node may have.
"""
_CONFIRMED = [{"commitment": "confirmed"}]


@dataclass(slots=True, eq=False)
class _Node:
    name: str
    transport: Transport
    slot: int = -1
    checked: float | None = None
    """Monotonic time of the last check of the genesis hash; None before the first check."""
    foreign: bool = False
    up: bool = False


class Nodes:
    """A transport to the nodes of one chain: reads from the freshest node that answers, sends to all nodes.

    Reads stay with the node of the last read while that node is at most four slots behind the freshest node.

    "Not found" is trusted only from a node that has reached the newest slot seen on any node before the request.
    Without such a node, a call raises `ChainUnavailable`, because trusting a stale node could lead to paying twice.
    """

    def __init__(self, nodes: Sequence[tuple[str, Transport]], expected: str | None = None) -> None:
        """Use `nodes`, each with a name for the log. `expected` is the genesis hash; None accepts any common hash."""
        self._nodes = [_Node(*one) for one in nodes]
        self._expected = expected
        self._bound = expected is not None
        self._seen = -1
        self._seen_at = 0.0
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._current: _Node | None = None
        self._sending: set[asyncio.Task[bytes]] = set()

    async def __call__(self, body: bytes) -> bytes:
        """Return the response body. Raises `ChainUnavailable` if no node gives a response that can be trusted."""
        request = from_json(body)
        calls = request if isinstance(request, list) else [request]
        await self._look()
        nodes = self._usable()
        if any(one["method"] == "sendTransaction" for one in calls):
            return await self._send(nodes, body)
        if any(one["method"] == "requestAirdrop" for one in calls):
            return await nodes[0].transport(body)
        # A finalized read has an older context slot, which does not show how far the node is.
        return await self._read(nodes, body, dated=b'"finalized"' not in body)

    async def aclose(self) -> None:
        """Close all connections."""
        tasks = [*self._sending, *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes:
            close = getattr(node.transport, "aclose", None)
            if close is not None:
                await close()

    # Reading

    async def _read(self, nodes: Sequence[_Node], body: bytes, *, dated: bool) -> bytes:
        """Return the first complete response, or else a trusted error or "not found".

        `dated` is True if the context slot of a response shows the newest slot of the node.
        """
        seen = self._seen
        absence: bytes | None = None
        error: ChainUnavailable | None = None
        limited: RateLimited | None = None
        for at, node in enumerate(nodes, 1):
            if absence is not None and not node.up:
                break
            patience = _PATIENCE if any(one.up for one in nodes[at:]) else None
            try:
                answer, parts = await self._ask(node, body, patience)
                slot = _as_of(parts) if dated else None
                if not _is_there(parts) and slot is None and await self._is_fresh(node, seen):
                    # The node may have caught up between its response and the check, so ask again.
                    answer, parts = await self._ask(node, body)
                    slot = seen
            except RateLimited as failure:
                limited = failure
                continue
            except ChainUnavailable as failure:
                node.up, error = False, error or failure
                continue
            if _is_there(parts):
                self._current = node
                return answer
            if slot is not None and slot >= seen:
                absence = absence or answer
            else:
                error = ChainUnavailable("the nodes that answer are stale: they lag behind the newest slot seen")
        if absence is not None:
            return absence
        raise limited or error or ChainUnavailable("no node answers")

    async def _ask(self, node: _Node, body: bytes, patience: float | None = None) -> tuple[bytes, list[dict[str, Any]]]:
        try:
            async with asyncio.timeout(patience):
                answer = await node.transport(body)
            found = from_json(answer)
        except TimeoutError:
            raise ChainUnavailable("the node does not answer in time") from None
        except ValueError:
            raise ChainUnavailable("the node's response is not JSON") from None
        parts = found if isinstance(found, list) else [found]
        if not all(isinstance(one, dict) for one in parts):
            raise ChainUnavailable("the node's response is not JSON-RPC")
        if not self._note(max(map(_shown, parts), default=-1)):
            raise ChainUnavailable("the node claims a slot that the chain cannot have reached")
        return answer, parts

    async def _is_fresh(self, node: _Node, seen: int) -> bool:
        try:
            # Do not repeat the call if it is refused: another node may answer the read.
            slot = whole(await Rpc(node.transport, patient=False).call("getSlot", _CONFIRMED))
        except (ValueError, RpcError):
            return False
        node.slot = slot
        return self._note(slot) and slot >= seen

    # Sending

    async def _send(self, nodes: Sequence[_Node], body: bytes) -> bytes:
        """Send to all nodes and return the first acceptance. Sending to the other nodes continues in the background.

        If all nodes refuse, return one of the refusals. Raises `ChainUnavailable` if no node accepts and at least one
        does not answer.
        """
        sending: set[asyncio.Task[bytes]] = {asyncio.create_task(_answer(node.transport(body))) for node in nodes}
        self._sending |= sending
        for task in sending:
            task.add_done_callback(self._sent)
        refusal: bytes | None = None
        doubt: BaseException | None = None
        for one in asyncio.as_completed(sending):
            try:
                answer = await one
                accepted = isinstance(found := from_json(answer), dict) and "result" in found
            except (ChainUnavailable, ValueError) as failure:
                doubt = doubt if isinstance(doubt, RateLimited) else failure
                continue
            if accepted:
                return answer
            refusal = answer
        if isinstance(doubt, RateLimited):
            raise doubt
        if doubt is not None or refusal is None:
            # A node that did not answer may have forwarded the transaction.
            raise ChainUnavailable("no node has acknowledged the transaction") from doubt
        return refusal

    def _sent(self, task: asyncio.Task[bytes]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()

    # Choosing nodes

    def _usable(self) -> list[_Node]:
        """Return the nodes that belong to the chain, in the order in which to read from them."""
        if not self._bound and any(one.foreign for one in self._nodes):
            # The first node to respond must not alone determine the expected chain.
            raise ChainUnavailable("the nodes belong to different chains")
        known = [one for one in self._nodes if one.checked is not None and not one.foreign]
        if not known:
            if any(one.foreign for one in self._nodes):
                raise WrongChainError("the nodes belong to another chain")
            raise ChainUnavailable("no node answers")
        order = sorted(known, key=lambda one: (one.up, one.slot), reverse=True)
        if (current := self._current) in order and current.up and current.slot + _CLOSE >= order[0].slot:
            order.remove(current)
            order.insert(0, current)
        return order

    async def _look(self) -> None:
        """Poll all nodes for their slots. Wait for the result only while no node is known to be up."""
        if self._looking is None and time.monotonic() - self._looked > _LOOK_EVERY:
            self._looked = time.monotonic()
            self._looking = asyncio.create_task(self._poll_all())
        if self._looking is not None and not any(one.up for one in self._nodes):
            await asyncio.shield(self._looking)

    async def _poll_all(self) -> None:
        try:
            found = await asyncio.gather(*(self._slot_of(one) for one in self._nodes))
            # Note the slot of the freshest node first. After the slot of a stale node, it could seem implausibly far
            # ahead.
            for node, slot in sorted(zip(self._nodes, found, strict=True), key=lambda one: one[1], reverse=True):
                node.slot, node.up = slot, slot >= 0 and not node.foreign and self._note(slot)
        finally:
            self._looking = None

    async def _slot_of(self, node: _Node) -> int:
        """Return a node's newest slot, or -1 if it does not report one."""
        rpc = Rpc(node.transport)
        try:
            async with asyncio.timeout(_PATIENCE):
                if node.checked is None or time.monotonic() - node.checked > _SAME_EVERY:
                    self._check(node, await rpc.call("getGenesisHash", []))
                return whole(await rpc.call("getSlot", _CONFIRMED))
        except (ChainUnavailable, RpcError, ValueError, TimeoutError) as error:
            if node.up:
                _log.warning("node_does_not_answer", node=node.name, error=str(error) or type(error).__name__)
            return -1

    def _check(self, node: _Node, genesis: Any) -> None:
        if self._expected is None:
            self._expected = str(genesis)
        foreign = genesis != self._expected
        if foreign and not node.foreign and self._bound:
            _log.error("node_of_another_chain", node=node.name, genesis_hash=str(genesis))
        node.foreign, node.checked = foreign, time.monotonic()

    def _note(self, slot: int) -> bool:
        """Note the newest slot that a node has shown. Return False if the chain cannot have reached it."""
        if self._seen >= 0:
            since = time.monotonic() - self._seen_at
            if slot > self._seen + _MOST_AHEAD + _MOST_A_SECOND * since:
                return False
        if slot > self._seen:
            self._seen, self._seen_at = slot, time.monotonic()
        return True


def transport_of(urls: Sequence[str], expected: str | None = None) -> Transport:
    """Return a transport to the nodes at these URLs. `expected` is the chain's genesis hash, if known.

    A single node is not checked against `expected` here; see `SameChain`.
    """
    if len(urls) == 1:
        return HttpTransport(urls[0])
    return Nodes([(urlsplit(one).netloc.rpartition("@")[2], HttpTransport(one)) for one in urls], expected)


async def _answer(asked: Awaitable[bytes]) -> bytes:
    return await asked


def _is_there(parts: Sequence[dict[str, Any]]) -> bool:
    """Return True if the responses are complete: none is an error, and none lacks a requested item."""
    return bool(parts) and all("result" in one and not _lacks(one["result"]) for one in parts)


def _lacks(result: Any) -> bool:
    if isinstance(result, dict) and "context" in result:
        value = result.get("value")
        if isinstance(value, list):
            return None in value
        # A stale node does not know a new blockhash.
        return value is None or (isinstance(value, dict) and value.get("err") == "BlockhashNotFound")
    if isinstance(result, dict) and "transaction" in result:
        meta = result.get("meta")
        if not isinstance(meta, dict):
            return True
        needed = [result.get("blockTime"), *map(meta.get, _PARTS)]
        return meta.get("err") is None and None in needed
    return result is None


def _shown(part: dict[str, Any]) -> int:
    """Return the newest confirmed slot that a response shows, or -1 if it shows none."""
    result = part.get("result")
    found: list[Any] = []
    if isinstance(result, dict):
        value, context = result.get("value"), result.get("context")
        statuses = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
        if any("confirmationStatus" in one for one in statuses):
            found = [one.get("slot") for one in statuses if one.get("confirmationStatus") in {"confirmed", "finalized"}]
        elif isinstance(value, list) and value == [None] * len(value):
            # If all items are unknown, the context slot may not be confirmed yet.
            pass
        elif isinstance(context, dict):
            found = [context.get("slot")]
        else:
            found = [result.get("slot"), result.get("absoluteSlot")]
    elif isinstance(result, list):
        found = [one.get("slot") for one in result if isinstance(one, dict)]
    return max((one for one in found if type(one) is int), default=-1)


def _as_of(parts: Sequence[dict[str, Any]]) -> int | None:
    """Return the lowest context slot of the responses, or None if a response has no context slot."""
    slots = []
    for one in parts:
        result = one.get("result")
        context = result.get("context") if isinstance(result, dict) else None
        slot = context.get("slot") if isinstance(context, dict) else None
        if type(slot) is not int:
            return None
        slots.append(slot)
    return min(slots, default=None)
