"""The clients: `Vault` for an agent, `Admin` for an organisation, and a version of each for an asyncio event loop."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from agent_vault_client import types
from agent_vault_client._core import AsyncCore, Call, Core, Options, Steps, steps_of
from agent_vault_client._operations import AsyncResources, Resources
from agent_vault_client.errors import PolicyViolation, VaultError

T = TypeVar("T")
P = ParamSpec("P")
_Body = dict[str, object]

_VERDICT = 5.0
"""Seconds for the request that asks when a refused payment would pass."""


def _waiting(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a blocking client that executes the steps."""

    @wraps(steps)
    def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return cast(Core, self.core).run(steps(self, *arguments, **options))

    return method


def _awaited(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return the method of an asyncio client that executes the steps."""

    @wraps(steps)
    def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> Awaitable[T]:
        return cast(AsyncCore, self.core).run(steps(self, *arguments, **options))

    return method


def _wallet(vault: Any) -> Steps[str]:
    """Return the vault's wallet: the only one that an agent's key lists."""
    if vault.core.wallet_id is None:
        page: Any = yield from steps_of(vault.core, Call[types.WalletPage]("GET", "/v1/wallets", query={"limit": 2}))
        if len(page["data"]) != 1:
            raise ValueError("the key does not belong to one wallet; name it: Vault(key, session, wallet_id=...)")
        vault.core.wallet_id = page["data"][0]["wallet_id"]
    return str(vault.core.wallet_id)


def _answer(vault: Any, call: Call[T], body: _Body, more: Mapping[str, Any], payment: _Body | None = None) -> Steps[T]:
    """Send a request about an expense. If the policy refuses a payment, ask once when it would pass."""
    options = {name: more[name] for name in ("order", "idempotency_key", "deadline") if name in more}
    body |= {name: value for name, value in more.items() if name not in options}
    try:
        return (yield from steps_of(vault.core, replace(call, body=body, **options)))
    except PolicyViolation as refusal:
        if payment is not None and refusal.retry_at is None:
            question = Call[types.Simulation]("POST", "/v1/payments/simulate", payment, deadline=_VERDICT)
            with suppress(VaultError):  # Without the time, the refusal is still a complete answer.
                refusal.retry_at = (yield from steps_of(vault.core, question)).get("retry_at")
        raise


def _pay(vault: Any, to: str, amount: str, **more: Unpack[types.PayOptions]) -> Steps[types.Payment]:
    """Pay `amount` USDC, a decimal string, to an address, a domain or a wallet. Waits until the payment is confirmed.

    The answer's status is `pending` if the deadline passes first. With a store, `order` is your name for the payment,
    such as an invoice's number. Calls with the same order pay once, even from different processes. Set the flags
    `after_restore` and `allow_unverified_recipient` only after the check that the errors `restore_unacknowledged` and
    `recipient_unverified` describe.
    """
    payment: _Body = {"wallet_id": (yield from _wallet(vault)), "to": to, "amount": amount}
    call = Call[types.Payment]("POST", "/v1/payments", keyed=True, settle=True)
    return (yield from _answer(vault, call, payment | {"currency": "USDC"}, more, payment))


def _escrow(
    vault: Any, to_wallet: str, amount: str, task_description: str, **more: Unpack[types.EscrowOptions]
) -> Steps[types.Escrow]:
    """Lock `amount` USDC for a task of another wallet. Complete or dispute the escrow with `escrows`."""
    body: _Body = {"from_wallet": (yield from _wallet(vault)), "to_wallet": to_wallet, "amount": amount}
    body |= {"currency": "USDC", "task_description": task_description}
    call = Call[types.Escrow]("POST", "/v1/payments/a2a", keyed=True, settle=True)
    return (yield from _answer(vault, call, body, more))


def _fetch(vault: Any, url: str, max_amount: str, **more: Unpack[types.FetchOptions]) -> Steps[types.FetchedResource]:
    """Fetch a resource and pay at most `max_amount` USDC if it answers 402, by x402 or MPP.

    Repeats the request while the payment is pending and the resource is missing. Do not trust the resource's content.
    """
    body: _Body = {"wallet_id": (yield from _wallet(vault)), "url": url, "max_amount": max_amount}
    call = Call[types.FetchedResource]("POST", "/v1/paid-requests/fetch", keyed=True, settle=True)
    return (yield from _answer(vault, call, body, more))


def _quote(vault: Any, url: str, **more: Unpack[types.QuoteOptions]) -> Steps[types.Quote]:
    """Return the price of a resource, its protocol and the policy's verdict, without paying."""
    body: _Body = {"wallet_id": (yield from _wallet(vault)), "url": url}
    return (yield from _answer(vault, Call[types.Quote]("POST", "/v1/paid-requests/quote"), body, more))


class Admin(Resources):
    """A client for an admin's, operator's or viewer's key. Operations are attributes, by tag: `wallets.create`."""

    def __init__(self, key: str, session: str | None = None, **options: Unpack[Options]) -> None:
        self.core = Core(key, session, options)
        super().__init__(self.core)

    def close(self) -> None:
        """Close the connections."""
        self.core.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class AsyncAdmin(AsyncResources):
    """`Admin` in an event loop of asyncio."""

    def __init__(self, key: str, session: str | None = None, **options: Unpack[Options]) -> None:
        self.core = AsyncCore(key, session, options)
        super().__init__(self.core)

    async def close(self) -> None:
        """Close the connections."""
        await self.core.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


class Vault(Admin):
    """A client for an agent: its API key and its session token."""

    pay = _waiting(_pay)
    escrow = _waiting(_escrow)
    fetch = _waiting(_fetch)
    quote = _waiting(_quote)


class AsyncVault(AsyncAdmin):
    """`Vault` in an event loop of asyncio."""

    pay = _awaited(_pay)
    escrow = _awaited(_escrow)
    fetch = _awaited(_fetch)
    quote = _awaited(_quote)
