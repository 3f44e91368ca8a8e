"""Subscriptions over WebSocket: signatures, logs, accounts and slots."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.localnet import params
from app.localnet.chain import Chain, Executed
from app.localnet.context import ACCOUNT_FIELDS, API_VERSION, commitment_of
from app.localnet.dispatch import parse_json, read_request, response
from app.localnet.encoding import account_json
from app.localnet.errors import MethodError, invalid_params, method_not_found
from app.localnet.params import Commitment
from app.localnet.storage import to_json
from app.localnet.timeline import FINALIZED_DEPTH

_MAX_QUEUED = 10_000
"""Messages a client may lag behind before its connection is closed."""

_TRY_AGAIN_LATER = 1013


class _Connection:
    """One client: its subscriptions and the messages on their way to it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue(_MAX_QUEUED)
        self.subscriptions: dict[int, _Subscription] = {}
        self.lagging = asyncio.Event()

    def send(self, text: str) -> None:
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            self.lagging.set()


@dataclass(slots=True, eq=False)
class _Subscription:
    number: int
    connection: _Connection
    kind: str
    commitment: Commitment = Commitment.PROCESSED
    # What is watched: a signature, an account, or for logs an address that must be mentioned (None: everything).
    key: Signature | Pubkey | None = None
    config: dict[str, Any] = field(default_factory=dict)

    def notify(self, slot: int | None, value: str) -> None:
        """Send `value`, JSON already; `slot` None leaves the context out."""
        if slot is not None:
            value = f'{{"context":{{"apiVersion":"{API_VERSION}","slot":{slot}}},"value":{value}}}'
        head = f'{{"jsonrpc":"2.0","method":"{self.kind}Notification"'
        self.connection.send(f'{head},"params":{{"result":{value},"subscription":{self.number}}}}}')


_signature_config = params.config(
    "RpcSignatureSubscribeConfig",
    {"commitment": params.commitment, "enableReceivedNotification": params.boolean},
)
_logs_config = params.config("RpcTransactionLogsConfig", {"commitment": params.commitment})
_account_config = params.config("RpcAccountInfoConfig", ACCOUNT_FIELDS)


def _logs_filter(value: Any) -> Pubkey | None:
    """Read the filter of logsSubscribe: the address that must be mentioned, None for every transaction."""
    if value in ("all", "allWithVotes"):
        return None
    if not isinstance(value, dict) or value.keys() != {"mentions"}:
        raise invalid_params("Invalid params: unknown variant, expected one of `all`, `allWithVotes`, `mentions`.")
    addresses = params.sequence(params.string)(value["mentions"])
    if len(addresses) != 1:
        raise invalid_params("Invalid Request: Only 1 address supported")
    address: Pubkey = params.pubkey(addresses[0])
    return address


class Subscriptions:
    """Tells subscribers what the chain executes and confirms.

    Notifications at `finalized` and of slots come from a ticker that runs only while somebody waits for them.
    """

    def __init__(self, chain: Chain) -> None:
        """Listen to `chain`."""
        self._chain = chain
        self._numbers = itertools.count(1)
        self._all: dict[str, dict[int, _Subscription]] = {kind: {} for kind in ("signature", "logs", "account", "slot")}
        self._by_signature: dict[Signature, list[_Subscription]] = {}
        self._to_finalize: deque[tuple[int, list[Executed], set[Pubkey]]] = deque()
        self._ticker: asyncio.Task[None] | None = None
        self._subscribe: dict[str, tuple[tuple[params.Reader, ...], int, Callable[..., _Subscription]]] = {
            "signatureSubscribe": ((params.signature, _signature_config), 1, self._signature),
            "logsSubscribe": ((_logs_filter, _logs_config), 1, self._logs),
            "accountSubscribe": ((params.pubkey, _account_config), 1, self._account),
            "slotSubscribe": ((), 0, self._slot),
        }
        chain.on_processed = self._processed
        chain.on_confirmed = self._confirmed

    # Connections

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one client until it goes away or cannot keep up."""
        await websocket.accept()
        connection = _Connection()
        tasks = [
            asyncio.create_task(self._read(websocket, connection)),
            asyncio.create_task(self._write(websocket, connection)),
            asyncio.create_task(connection.lagging.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for subscription in list(connection.subscriptions.values()):
                self._remove(subscription)
            if connection.lagging.is_set():
                with suppress(RuntimeError, WebSocketDisconnect):
                    await websocket.close(_TRY_AGAIN_LATER)

    async def _read(self, websocket: WebSocket, connection: _Connection) -> None:
        with suppress(WebSocketDisconnect):
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                for text in self._answers(connection, message.get("text") or message.get("bytes") or ""):
                    connection.send(text)

    @staticmethod
    async def _write(websocket: WebSocket, connection: _Connection) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await websocket.send_text(await connection.queue.get())

    def _answers(self, connection: _Connection, text: str | bytes) -> Iterable[str]:
        try:
            request = parse_json(text)
        except MethodError as error:
            yield response(None, error)
            return
        if not isinstance(request, list):
            yield from self._answer(connection, request)
            return
        # Clients read the answers of a batch as one array; notifications must come behind it.
        found: list[_Subscription] = []
        yield f"[{','.join(itertools.chain.from_iterable(self._answer(connection, one, found) for one in request))}]"
        for subscription in found:
            self._catch_up(subscription)

    def _answer(self, connection: _Connection, request: Any, later: list[_Subscription] | None = None) -> Iterable[str]:
        try:
            request_id, name, arguments = read_request(request)
            result = self._call(connection, name, arguments)
        except MethodError as error:
            yield response(request.get("id") if isinstance(request, dict) else None, error)
            return
        if isinstance(result, bool):
            yield response(request_id, result)
            return
        yield response(request_id, result.number)
        if later is None:
            self._catch_up(result)
        else:
            later.append(result)

    def _call(self, connection: _Connection, name: str, arguments: Any) -> "_Subscription | bool":
        if name in self._subscribe:
            readers, required, make = self._subscribe[name]
            subscription = make(connection, *params.arguments(arguments, readers, required))
            connection.subscriptions[subscription.number] = subscription
            self._all[subscription.kind][subscription.number] = subscription
            self._start_ticker()
            return subscription
        kind = name.removesuffix("Unsubscribe")
        if kind == name or kind not in self._all:
            raise method_not_found()
        (number,) = params.arguments(arguments, (params.u64,), 1)
        wanted = connection.subscriptions.get(number)
        if wanted is None or wanted.kind != kind:
            raise invalid_params("Invalid subscription id.")
        self._remove(wanted)
        return True

    # Subscribing

    def _signature(self, connection: _Connection, signature: Signature, config: dict[str, Any]) -> _Subscription:
        subscription = _Subscription(
            next(self._numbers), connection, "signature", commitment_of(config), signature, config
        )
        self._by_signature.setdefault(signature, []).append(subscription)
        return subscription

    def _logs(self, connection: _Connection, mentioned: Pubkey | None, config: dict[str, Any]) -> _Subscription:
        return _Subscription(next(self._numbers), connection, "logs", commitment_of(config), mentioned, config)

    def _account(self, connection: _Connection, address: Pubkey, config: dict[str, Any]) -> _Subscription:
        return _Subscription(next(self._numbers), connection, "account", commitment_of(config), address, config)

    def _slot(self, connection: _Connection) -> _Subscription:
        return _Subscription(next(self._numbers), connection, "slot")

    def _remove(self, subscription: _Subscription) -> None:
        subscription.connection.subscriptions.pop(subscription.number, None)
        self._all[subscription.kind].pop(subscription.number, None)
        if isinstance(subscription.key, Signature):
            same = self._by_signature.get(subscription.key, [])
            if subscription in same:
                same.remove(subscription)
            if not same:
                self._by_signature.pop(subscription.key, None)

    def _catch_up(self, subscription: _Subscription) -> None:
        """Tell a subscriber of a signature at once when the transaction is as settled as it asked for already."""
        if not isinstance(subscription.key, Signature):
            return
        found = self._chain.status(subscription.key)
        if found is not None and found[1] >= subscription.commitment:
            self._tell_signature(subscription, found[0].slot, found[0].err or "null")

    # Events

    def _processed(self, executed: Executed, changed: Iterable[Pubkey]) -> None:
        self._tell(Commitment.PROCESSED, [executed], changed)

    def _confirmed(self, executed: list[Executed], changed: Iterable[Pubkey]) -> None:
        self._tell(Commitment.CONFIRMED, executed, changed)
        if self._wants_finalized():
            self._to_finalize.append((executed[-1].slot + FINALIZED_DEPTH, executed, set(changed)))

    def _tell(self, commitment: Commitment, executed: list[Executed], changed: Iterable[Pubkey]) -> None:
        for one in executed if self._by_signature else ():
            for subscription in [s for s in self._by_signature.get(one.signature, ()) if s.commitment == commitment]:
                self._tell_signature(subscription, one.slot, to_json(one.err))
        logs = [s for s in self._all["logs"].values() if s.commitment == commitment]
        for one in executed if logs else ():
            value = to_json({"signature": str(one.signature), "err": one.err, "logs": one.logs})
            for subscription in logs:
                if subscription.key is None or subscription.key in one.keys:
                    subscription.notify(one.slot, value)
        accounts = [s for s in self._all["account"].values() if s.commitment == commitment]
        if accounts:
            addresses = set(changed)
            for subscription in accounts:
                if isinstance(subscription.key, Pubkey) and subscription.key in addresses:
                    self._tell_account(subscription, subscription.key, executed[-1].slot)

    def _tell_signature(self, subscription: _Subscription, slot: int, err: str) -> None:
        subscription.notify(slot, f'{{"err":{err}}}')
        self._remove(subscription)

    def _tell_account(self, subscription: _Subscription, address: Pubkey, slot: int) -> None:
        account = self._chain.account(address, subscription.commitment) or Account(0, b"", Pubkey.default())
        config = subscription.config
        try:
            shown = account_json(
                account, config.get("encoding", "binary"), config.get("dataSlice"), self._chain.decimals
            )
        except MethodError:
            # Too long for base58: a validator sends an error in place of the data.
            shown = account_json(account, "base64")
            shown["data"] = ["error: data too large for bs58 encoding", "base58"]
        subscription.notify(slot, to_json(shown))

    # Time

    def _wants_finalized(self) -> bool:
        kinds = ("signature", "logs", "account")
        return any(s.commitment is Commitment.FINALIZED for kind in kinds for s in self._all[kind].values())

    def _start_ticker(self) -> None:
        wanted = self._all["slot"] or self._wants_finalized()
        if wanted and (self._ticker is None or self._ticker.done()):
            self._ticker = asyncio.create_task(self._tick(), name="localnet-slots")

    async def _tick(self) -> None:
        told = self._chain.slot()
        while self._all["slot"] or self._wants_finalized():
            await asyncio.sleep(self._chain.timeline.seconds_to_next_slot())
            slot = self._chain.slot()
            if slot == told:
                continue
            told = slot
            value = to_json({"parent": slot - 1, "root": max(0, slot - FINALIZED_DEPTH), "slot": slot})
            for subscription in self._all["slot"].values():
                subscription.notify(None, value)
            self._finalize(slot)
        self._to_finalize.clear()

    def _finalize(self, slot: int) -> None:
        while self._to_finalize and self._to_finalize[0][0] <= slot:
            _, executed, changed = self._to_finalize.popleft()
            self._tell(Commitment.FINALIZED, executed, changed)
        for subscription in list(self._all["signature"].values()):
            if subscription.commitment is Commitment.FINALIZED:
                self._catch_up(subscription)

    async def aclose(self) -> None:
        """Stop the ticker."""
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
