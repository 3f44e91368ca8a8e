"""The core of both clients: calls, retries, deadlines and keys, written once as steps that a client executes."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from typing import Any, Generic, TypedDict, TypeVar, cast

import httpx

from agent_vault_client import errors
from agent_vault_client.stores import KeyStore, StoredKey

T = TypeVar("T")
C = TypeVar("C")
VERSION = "0.1.0"

KEY_LIFETIME = 23 * 3600.0
"""Seconds for which a key may be sent again. The service keeps keys for 24 hours."""
_CLOCK_ERROR = 300.0
"""Seconds by which the first use of a stored key may lie in the future. A larger difference means that the clock was
moved."""
_ATTEMPT = 30.0
"""Seconds that one attempt may take."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_FEW = 3
"""Maximum number of attempts if the service fails unexpectedly or the response is not the service's."""


class Options(TypedDict, total=False):
    """Options of every client. `base_url` is the service's address. `deadline` limits each call, in seconds.

    `wallet_id` is needed only with a key for several wallets. `store` keeps the idempotency keys of orders. `clock`
    returns the host's Unix time, and `transport` replaces the connection.
    """

    base_url: str
    wallet_id: str
    deadline: float
    store: KeyStore
    clock: Callable[[], float]
    transport: Any


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to an operation. `settle` repeats it while its payment is pending."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    query: Mapping[str, object] | None = None
    keyed: bool = False
    order: str | None = None
    idempotency_key: str | None = None
    if_match: str | None = None
    deadline: float | None = None
    offline: bool = False
    settle: bool = False


class Answer(dict[str, Any]):
    """The object of a response, with the response's headers and the key of the call."""

    headers: Mapping[str, str]
    idempotency_key: str | None = None


def headers_of(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the headers of the response that contained an answer, such as its `ETag`."""
    return getattr(answer, "headers", {})


def idempotency_key_of(answer: Mapping[str, Any]) -> str | None:
    """Return the idempotency key of the change that an answer belongs to."""
    return getattr(answer, "idempotency_key", None)


def _sent(fields: Mapping[str, object] | None) -> dict[str, Any]:
    """Return fields by their names in the API: `from_` becomes `from`."""
    return {name.rstrip("_"): value for name, value in (fields or {}).items()}


class Settings:
    """The settings of a client."""

    def __init__(self, key: str, session: str | None, options: Options) -> None:
        self.session, self.wallet_id, self.deadline = session, options.get("wallet_id"), options.get("deadline", 60.0)
        self.store, self.clock = options.get("store"), options.get("clock", time.time)
        base_url = options.get("base_url", "http://127.0.0.1:8402")
        if not base_url.startswith(("http://", "https://")):
            raise ValueError("base_url must start with http:// or https://")
        headers = {"Authorization": f"Bearer {key}", "User-Agent": f"agent-vault-client/{VERSION} python"}
        self.http: dict[str, Any] = {"base_url": base_url, "headers": headers, "transport": options.get("transport")}


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a client: `now` blocks until the action is done, and `later` runs it in an event loop."""

    now: Callable[[httpx.Client], Any]
    later: Callable[[httpx.AsyncClient], Awaitable[Any]]


Steps = Generator[Step, Any, T]


def _send(method: str, path: str, arguments: Mapping[str, Any], ends: float) -> Step:
    """Return the step that sends a request. The step gives the response, or the error of the connection.

    The step ends soon after the monotonic time `ends`, or after 30 seconds if that is earlier.
    """
    seconds = min(max(0.001, ends - time.monotonic()), _ATTEMPT)

    def now(http: httpx.Client) -> httpx.Response | Exception:
        stops, parts = time.monotonic() + seconds, []
        try:
            with http.stream(method, path, timeout=seconds, **arguments) as response:
                for part in response.iter_bytes():
                    parts.append(part)
                    if time.monotonic() > stops:
                        return TimeoutError("the response took too long")
        except httpx.RequestError as error:
            return error
        headers = {name: value for name, value in response.headers.items() if name != "content-encoding"}
        return httpx.Response(response.status_code, headers=headers, content=b"".join(parts))

    async def later(http: httpx.AsyncClient) -> httpx.Response | Exception:
        try:
            async with asyncio.timeout(seconds):
                return await http.request(method, path, timeout=seconds, **arguments)
        except (httpx.RequestError, TimeoutError) as error:
            return error

    return Step(now, later)


def _pause(seconds: float) -> Step:
    return Step(lambda _: time.sleep(seconds), lambda _: asyncio.sleep(seconds))


def steps_of(settings: Settings, call: Call[T]) -> Steps[T]:
    """Send a call until its outcome is known or its deadline passes."""
    if call.order is not None and (settings.store is None or call.idempotency_key is not None):
        raise ValueError("order needs a client with a store, and cannot be used with idempotency_key")
    seconds = settings.deadline if call.deadline is None else call.deadline
    ends = time.monotonic() + seconds
    given = (("If-Match", call.if_match), ("Session-Token", None if call.method == "GET" else settings.session))
    headers = {name: value for name, value in given if value is not None}
    query = _sent(call.query) | ({"sign": "offline"} if call.offline else {})
    arguments = {"headers": headers, "params": query} | ({"json": _sent(call.body)} if call.body else {})
    stored: StoredKey | None = None
    answer: Answer | None = None
    last: errors.VaultError | None = None
    try:
        for attempts in count(1):
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempts, 9)) * random.uniform(0.5, 1.0)  # noqa: S311
            try:
                if call.keyed:
                    now = settings.clock() if call.order is None else (yield from _service_time(settings, ends))
                    stored = stored or (yield from _claimed(settings, call, now))
                    headers["Idempotency-Key"] = stored.key
                    if not -_CLOCK_ERROR <= now - stored.created_at < KEY_LIFETIME:
                        raise errors.OutcomeUnknown(stored) from last
                answer = read((yield _send(call.method, call.path, arguments, ends)))
                answer.idempotency_key = headers.get("Idempotency-Key")
                if not (call.settle and _unsettled(answer)):
                    return cast(T, answer)
            except errors.VaultError as error:
                last = error
                if not _passing(error, attempts):
                    raise
                if error.retry_after is not None:
                    pause = error.retry_after + random.uniform(0.0, _FIRST_PAUSE * attempts)  # noqa: S311
            if time.monotonic() + pause >= ends:
                if answer is not None:
                    return cast(T, answer)
                if isinstance(last, errors.RateLimited) and attempts == 1:
                    raise last
                raise errors.DeadlineExceeded(seconds, last, keyed=call.keyed) from last
            yield _pause(pause)
    except errors.VaultError as error:
        error.idempotency_key = headers.get("Idempotency-Key")
        raise
    raise AssertionError("unreachable")


def _service_time(settings: Settings, ends: float) -> Steps[float]:
    """Return the service's Unix time, or the host's if the service sends none. Keys expire by this time."""
    told = read((yield _send("GET", "/v1/wallets", {"params": {"limit": 1}}, ends))).headers.get("Service-Time")
    return datetime.fromisoformat(told).timestamp() if told else settings.clock()


def _claimed(settings: Settings, call: Call[T], now: float) -> Steps[StoredKey]:
    """Return the key of a change: the caller's, the order's stored one, or a new one."""
    body = _sent(call.body)
    facts = [str(next((body[name] for name in names if name in body), "")) for names in _FACTS]
    new = StoredKey(call.order or "", call.idempotency_key or str(uuid.uuid4()), now, *facts)
    if call.order is None:
        return new
    claim = cast(KeyStore, settings.store).claim
    return cast(StoredKey, (yield Step(lambda _: claim(new), lambda _: asyncio.to_thread(claim, new))))


_FACTS = (("wallet_id", "from_wallet"), ("to", "to_wallet", "url", "destination"), ("amount", "max_amount"))


def _unsettled(answer: Answer) -> bool:
    """Return True if the call should be repeated: its payment is pending, and no resource was received for it."""
    payment, resource = answer.get("payment", answer) or {}, answer.get("resource") or {}
    return bool(payment.get("status") == "pending" and not 200 <= resource.get("status", 0) < 300)


def _passing(error: errors.VaultError, attempts: int) -> bool:
    """Return True if another attempt may succeed. The attempt has no second effect, because it has the same key."""
    if isinstance(error, errors.InvalidAnswer) or error.status == 500:
        return attempts < _FEW and not 300 <= error.status < 500
    if isinstance(error, errors.Unreachable) or error.code == "idempotency_in_progress":
        return True
    return error.status in {408, 429, 502, 503, 504} and error.code not in {"sol_limit_reached", "authority_offline"}


def read(seen: httpx.Response | Exception) -> Answer:
    """Return the object of a response, or raise its error."""
    if isinstance(seen, Exception):
        raise errors.Unreachable(f"The service cannot be reached or closed the connection: {seen!r}.") from seen
    try:
        found = json.loads(seen.content)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and seen.is_success:
        answer = Answer(found)
        answer.headers = seen.headers
        return answer
    fields = found.get("error") if isinstance(found, dict) else None
    if isinstance(fields, dict) and seen.status_code >= 400:
        texts = {name: str(fields.get(name) or "") for name in ("code", "message", "remedy")}
        error: errors.VaultError = errors.family(seen.status_code)(status=seen.status_code, fields=fields, **texts)
    else:
        kind = errors.family(seen.status_code) if seen.status_code in {429, 502, 503, 504} else errors.InvalidAnswer
        status = seen.status_code
        error = kind(f"This response is not from the service (status {status}): {seen.text[:80]!r}", status=status)
    wait = seen.headers.get("Retry-After", "")
    error.retry_after = float(wait) if wait.isascii() and wait.isdigit() else None
    raise error


def next_page(call: Call[T], page: Mapping[str, Any]) -> Call[T] | None:
    """Return the call of a list's next page, or None after the last page."""
    cursor = page.get("next_cursor")
    return replace(call, query={**(call.query or {}), "cursor": cursor}) if cursor else None


class Core(Settings):
    """Executes calls, each in the caller's thread."""

    def __init__(self, key: str, session: str | None, options: Options) -> None:
        super().__init__(key, session, options)
        self.client = httpx.Client(**self.http)

    def run(self, steps: Steps[T]) -> T:
        """Execute steps and return their result."""
        seen = None
        try:
            while True:
                seen = steps.send(seen).now(self.client)
        except StopIteration as end:
            return cast(T, end.value)

    def call(self, call: Call[T]) -> T:
        """Return the answer to a call."""
        return self.run(steps_of(self, call))

    def rows(self, call: Call[T]) -> Iterator[T]:
        """Yield the rows of a list, page by page."""
        following: Call[T] | None = call
        while following is not None:
            page = cast(dict[str, Any], self.call(following))
            yield from page["data"]
            following = next_page(following, page)


class AsyncCore(Settings):
    """Executes calls in an event loop."""

    def __init__(self, key: str, session: str | None, options: Options) -> None:
        super().__init__(key, session, options)
        self.client = httpx.AsyncClient(**self.http)

    async def run(self, steps: Steps[T]) -> T:
        """Execute steps and return their result."""
        seen = None
        try:
            while True:
                seen = await steps.send(seen).later(self.client)
        except StopIteration as end:
            return cast(T, end.value)

    async def call(self, call: Call[T]) -> T:
        """Return the answer to a call."""
        return await self.run(steps_of(self, call))

    async def rows(self, call: Call[T]) -> AsyncIterator[T]:
        """Yield the rows of a list, page by page."""
        following: Call[T] | None = call
        while following is not None:
            page = cast(dict[str, Any], await self.call(following))
            for row in page["data"]:
                yield row
            following = next_page(following, page)


class Resource(Generic[C]):
    """The base class of each tag's operations."""

    def __init__(self, core: C) -> None:
        self._core = core
