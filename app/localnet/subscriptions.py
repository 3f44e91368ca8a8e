"""Subscriptions over WebSocket: signatures, logs, accounts, programs, slots and roots."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.localnet import params
from app.localnet.chain import Chain, Executed
from app.localnet.context import API_VERSION, account_config, commitment_of
from app.localnet.dispatch import parse_json, read_request, response
from app.localnet.encoding import account_json
from app.localnet.errors import MethodError, invalid_params, method_not_found
from app.localnet.methods_accounts import program_accounts_config
from app.localnet.params import Commitment
from app.localnet.storage import StoredStatus, to_json
from app.localnet.timeline import FINALIZED_DEPTH

_MAX_QUEUED = 10_000
"""Number of messages that a client may lag behind before its connection is closed."""

_TRY_AGAIN_LATER = 1013


class _Connection:
    """One client: its subscriptions and the messages queued for it."""

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
    # The watched object: a signature, an account, a program, or the address that logs must mention (None: any).
    key: Signature | Pubkey | None
    config: dict[str, Any]
    commitment: Commitment

    def notify(self, slot: int | None, value: str) -> None:
        """Send `value`, which is JSON text. Without a `slot`, the notification has no context."""
        if slot is not None:
            value = f'{{"context":{{"apiVersion":"{API_VERSION}","slot":{slot}}},"value":{value}}}'
        head = f'{{"jsonrpc":"2.0","method":"{self.kind}Notification"'
        self.connection.send(f'{head},"params":{{"result":{value},"subscription":{self.number}}}}}')


def _logs_filter(value: Any) -> Pubkey | None:
    """Read the filter of logsSubscribe: the address that a transaction must mention, or None for every transaction."""
    if value in ("all", "allWithVotes"):
        return None
    if not isinstance(value, dict) or value.keys() != {"mentions"}:
        raise invalid_params("Invalid params: unknown variant, expected one of `all`, `allWithVotes`, `mentions`.")
    addresses = params.sequence(params.string)(value["mentions"])
    if len(addresses) != 1:
        raise invalid_params("Invalid Request: Only 1 address supported")
    address: Pubkey = params.pubkey(addresses[0])
    return address


_signature_config = params.config(
    "RpcSignatureSubscribeConfig",
    {"commitment": params.commitment, "enableReceivedNotification": params.boolean},
)
_logs_config = params.config("RpcTransactionLogsConfig", {"commitment": params.commitment})

# The readers of a subscription's parameters and the number of required ones.
_KINDS: dict[str, tuple[tuple[params.Reader, ...], int]] = {
    "program": ((params.pubkey, program_accounts_config), 1),
    "root": ((), 0),
    "signature": ((params.signature, _signature_config), 1),
    "logs": ((_logs_filter, _logs_config), 1),
    "account": ((params.pubkey, account_config), 1),
    "slot": ((), 0),
}


#: The kinds of subscriptions that are notified in every slot.
_OF_SLOTS = ("slot", "root")


class Subscriptions:
    """Notifies subscribers of transactions that the chain executes and confirms.

    A ticker sends the notifications at `finalized` and the notifications of slots. It runs only while a client waits
    for them.
    """

    def __init__(self, chain: Chain) -> None:
        """Listen to the executed and confirmed transactions of `chain`."""
        self._chain = chain
        self._numbers = itertools.count(1)
        self._all: dict[str, dict[int, _Subscription]] = {kind: {} for kind in _KINDS}
        self._by_signature: dict[Signature, list[_Subscription]] = {}
        self._to_finalize: deque[tuple[int, list[Executed], set[Pubkey]]] = deque()
        self._ticker: asyncio.Task[None] | None = None
        chain.on_processed = self._processed
        chain.on_confirmed = self._confirmed

    # Connections

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one client until it disconnects or lags too far behind."""
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
                self._answer(connection, message.get("text") or message.get("bytes") or "")

    @staticmethod
    async def _write(websocket: WebSocket, connection: _Connection) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await websocket.send_text(await connection.queue.get())

    def _answer(self, connection: _Connection, text: str | bytes) -> None:
        try:
            request = parse_json(text)
        except MethodError as error:
            connection.send(response(None, error))
            return
        new: list[_Subscription] = []
        if isinstance(request, list):
            connection.send(f"[{','.join(self._answer_one(connection, one, new) for one in request)}]")
        else:
            connection.send(self._answer_one(connection, request, new))
        # Clients read the responses to a batch as one array, so notifications must follow it.
        for subscription in new:
            self._catch_up(subscription)

    def _answer_one(self, connection: _Connection, request: Any, new: list[_Subscription]) -> str:
        try:
            name, arguments = read_request(request)
            kind = name.removesuffix("Subscribe")
            if kind == name or kind not in _KINDS:
                self._unsubscribe(connection, name, arguments)
                return response(request, True)
            subscription = self._subscribe(connection, kind, *params.arguments(arguments, *_KINDS[kind]))
        except MethodError as error:
            return response(request, error)
        new.append(subscription)
        return response(request, subscription.number)

    # Subscribing

    def _subscribe(
        self,
        connection: _Connection,
        kind: str,
        key: Signature | Pubkey | None = None,
        config: dict[str, Any] | None = None,
    ) -> _Subscription:
        config = {"commitment": Commitment.PROCESSED} if config is None else config
        subscription = _Subscription(next(self._numbers), connection, kind, key, config, commitment_of(config))
        connection.subscriptions[subscription.number] = subscription
        self._all[kind][subscription.number] = subscription
        if isinstance(key, Signature):
            self._by_signature.setdefault(key, []).append(subscription)
        if (kind in _OF_SLOTS or self._wants_finalized()) and (self._ticker is None or self._ticker.done()):
            self._ticker = asyncio.create_task(self._tick(), name="localnet-slots")
        return subscription

    def _unsubscribe(self, connection: _Connection, name: str, arguments: Any) -> None:
        kind = name.removesuffix("Unsubscribe")
        if kind == name or kind not in _KINDS:
            raise method_not_found()
        (number,) = params.arguments(arguments, (params.u64,), 1)
        subscription = connection.subscriptions.get(number)
        if subscription is None or subscription.kind != kind:
            raise invalid_params("Invalid subscription id.")
        self._remove(subscription)

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
        """Immediately notify a subscriber of a signature if its transaction has already reached the commitment."""
        if not isinstance(subscription.key, Signature):
            return
        found = self._chain.status(subscription.key)
        if found is not None and found[1] >= subscription.commitment:
            self._notify_signature(subscription, found[0])

    # Events

    def _processed(self, executed: Executed, changed: Iterable[Pubkey]) -> None:
        self._notify(Commitment.PROCESSED, [executed], changed)

    def _confirmed(self, executed: list[Executed], changed: Iterable[Pubkey]) -> None:
        self._notify(Commitment.CONFIRMED, executed, changed)
        if self._wants_finalized():
            self._to_finalize.append((executed[-1].row.slot + FINALIZED_DEPTH, executed, set(changed)))

    def _notify(self, commitment: Commitment, executed: list[Executed], changed: Iterable[Pubkey]) -> None:
        for one in executed if self._by_signature else ():
            for subscription in [s for s in self._by_signature.get(one.signature, ()) if s.commitment == commitment]:
                self._notify_signature(subscription, one.row)
        logs = self._at(commitment, "logs")
        for one in executed if logs else ():
            value = to_json({"signature": str(one.signature), "err": one.err, "logs": one.logs})
            for subscription in logs:
                if subscription.key is None or subscription.key in one.keys:
                    subscription.notify(one.row.slot, value)
        if accounts := self._at(commitment, "account"):
            addresses = set(changed)
            for subscription in accounts:
                if isinstance(subscription.key, Pubkey) and subscription.key in addresses:
                    self._notify_account(subscription, subscription.key, executed[-1].row.slot)
        if programs := self._at(commitment, "program"):
            self._notify_programs(programs, commitment, changed, executed[-1].row.slot)

    def _at(self, commitment: Commitment, kind: str) -> list[_Subscription]:
        return [s for s in self._all[kind].values() if s.commitment == commitment]

    def _notify_signature(self, subscription: _Subscription, status: StoredStatus) -> None:
        subscription.notify(status.slot, f'{{"err":{status.err or "null"}}}')
        self._remove(subscription)

    def _notify_programs(
        self, programs: list[_Subscription], commitment: Commitment, changed: Iterable[Pubkey], slot: int
    ) -> None:
        for address in set(changed):
            # A closed account no longer belongs to a program, so a validator does not report it here either.
            account = self._chain.account(address, commitment)
            if account is None:
                continue
            for subscription in programs:
                filters = subscription.config.get("filters", ())
                if account.owner == subscription.key and all(one.passes(account) for one in filters):
                    shown = {"pubkey": str(address), "account": self._shown(account, subscription.config)}
                    subscription.notify(slot, to_json(shown))

    def _notify_account(self, subscription: _Subscription, address: Pubkey, slot: int) -> None:
        account = self._chain.account(address, subscription.commitment) or Account(0, b"", Pubkey.default())
        subscription.notify(slot, to_json(self._shown(account, subscription.config)))

    def _shown(self, account: Account, config: dict[str, Any]) -> dict[str, Any]:
        encoding = config.get("encoding", "binary")
        try:
            shown = account_json(account, encoding, config.get("dataSlice"), self._chain.decimals)
        except MethodError:
            # The data is too long for base58. A validator sends an error in its place.
            shown = account_json(account, "base64")
            shown["data"] = ["error: data too large for bs58 encoding", "base58"]
        return shown

    # Time

    def _wants_finalized(self) -> bool:
        return any(s.commitment is Commitment.FINALIZED for kind in self._all.values() for s in kind.values())

    async def _tick(self) -> None:
        last = self._chain.slot()
        while any(self._all[kind] for kind in _OF_SLOTS) or self._wants_finalized():
            await asyncio.sleep(self._chain.timeline.seconds_to_next_slot())
            slot = self._chain.slot()
            if slot == last:
                continue
            last = slot
            root = max(0, slot - FINALIZED_DEPTH)
            value = to_json({"parent": slot - 1, "root": root, "slot": slot})
            for subscription in self._all["slot"].values():
                subscription.notify(None, value)
            for subscription in self._all["root"].values():
                subscription.notify(None, to_json(root))
            while self._to_finalize and self._to_finalize[0][0] <= slot:
                _, executed, changed = self._to_finalize.popleft()
                self._notify(Commitment.FINALIZED, executed, changed)
            for subscription in self._at(Commitment.FINALIZED, "signature"):
                self._catch_up(subscription)
        self._to_finalize.clear()

    async def aclose(self) -> None:
        """Stop the ticker."""
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
