"""A whole service for tests: embedded chain, program, indexer, projector and HTTP application, without sockets."""

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import httpx
from pydantic import SecretStr
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.access.keyring import KeyRing
from app.api.metrics import Metrics
from app.chain.errors import ChainUnavailable
from app.chain.records import SignatureStatus
from app.chain.transactions import Signed, sign
from app.chain.transport import AsgiTransport
from app.core.actors import Role
from app.core.paths import program_file
from app.core.settings import Settings
from app.core.signers import Signer
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.keeper.keeper import Keeper
from app.localnet import Localnet
from app.organisations import service as organisations
from app.server.application import create_app
from app.server.bootstrap import codec_of, running
from app.server.quickstart import LAMPORTS, RESERVE
from app.store.attempts import Attempt, attempt
from app.store.organisations import organisation
from app.store.policies import PolicyRecord, policy
from app.store.wallets import WalletRecord, wallet
from app.submission.context import Service
from tests.support.chain import altered
from tests.support.present import PresentInstructions, on_localnet

Json = dict[str, Any]

GENESIS_HASHES = {
    "mainnet-beta": "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",
    "devnet": "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG",
    "testnet": "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY",
}
"""Genesis hashes of the public clusters, as returned by their nodes' `getGenesisHash`."""


class Clock:
    """The chain's clock, which decides deadlines and expiries: real time plus the seconds added by a test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


_ASKED: ContextVar[list[str] | None] = ContextVar("asked", default=None)


class FlakyTransport:
    """A transport to the chain that tests can break, for requests (`lose_requests`) or for answers (`lose_answers`).

    If `hold` returns an awaitable for a method, it is awaited before the request passes. `through` sends a request's
    body to the chain. `alter` gets a method's name and its result, and returns the result to answer instead.
    """

    def __init__(self, through: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.through = through
        self.lose_requests: Callable[[str], bool] = lambda _method: False
        self.lose_answers: Callable[[str], bool] = lambda _method: False
        self.hold: Callable[[str], Awaitable[object] | None] = lambda _method: None
        self.alter: Callable[[str, Any], Any] | None = None
        self.methods: list[str] = []

    async def __call__(self, body: bytes) -> bytes:
        request = json.loads(body)
        methods = [one["method"] for one in (request if isinstance(request, list) else [request])]
        self.methods += methods
        if (asked := _ASKED.get()) is not None:
            asked += methods
        for method in methods:
            if (held := self.hold(method)) is not None:
                await held
        if any(self.lose_requests(method) for method in methods):
            raise ChainUnavailable("cut by the test")
        answer = await self.through(body)
        if any(self.lose_answers(method) for method in methods):
            raise ChainUnavailable("cut by the test")
        return answer if self.alter is None else altered(methods, answer, self.alter)

    @contextmanager
    def asked(self) -> Iterator[list[str]]:
        """Record the methods called by this block and the tasks it starts, but not by the service's background jobs."""
        methods: list[str] = []
        token = _ASKED.set(methods)
        try:
            yield methods
        finally:
            _ASKED.reset(token)

    @staticmethod
    def asking() -> bool:
        """Return True if the current request was made in a block of `asked`."""
        return _ASKED.get() is not None

    def mend(self) -> None:
        self.lose_requests = self.lose_answers = lambda _method: False
        self.alter = None


class ServiceWorld:
    """The service and its test helpers. Amounts are decimal strings."""

    service: Service
    client: httpx.AsyncClient
    line: FlakyTransport
    localnet: Localnet
    org: str

    new_database: ClassVar[Callable[[], str] | None] = None
    """Creates a database for a service and returns its URL. If None, each service uses a file in its folder."""

    def __init__(self, folder: Path, *, genesis_hash: str | None = None, **settings: Any) -> None:
        """Set up the world. The embedded chain reports `genesis_hash` as its own, if given."""
        self._genesis_hash = genesis_hash
        defaults: Json = {"data_dir": folder, "idempotency_wait": 2.0, "recovery_interval": 3600.0}
        # Tests run these themselves, some of them with the clock moved.
        defaults["keeper"] = defaults["alerts"] = defaults["reconciliation"] = False
        # Tests send requests as fast as they can.
        defaults["rate_limit"] = defaults["failed_authentications"] = 0
        defaults["operator_daily_limit"] = "1000000000.00"
        defaults |= self._own_database()
        self.settings = Settings(**{**defaults, **settings})
        self.clock = Clock()
        self._outsider = Keypair()
        self._chain = AsyncExitStack()
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        self.keys: dict[str, str] = {}

    def _own_database(self) -> Json:
        make = type(self).new_database
        return {} if make is None else {"database_url": SecretStr(make())}

    async def __aenter__(self) -> Self:
        programs = {codec_of(self.settings).program_id: program_file()}
        self.localnet = await self._chain.enter_async_context(Localnet.open(None, programs, self.clock))
        if self._genesis_hash is not None:
            self.localnet.chain.timeline.genesis_hash = Hash.from_string(self._genesis_hash)
        await self.start()
        await self.localnet.airdrop(self.service.signers.fee_payer.pubkey(), LAMPORTS)
        self.org = await self.organisation("test")
        self.keys["admin"] = self.key("admin")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
        await self._chain.aclose()

    async def start(self, *, lose_requests: Callable[[str], bool] | None = None, **settings: Any) -> None:
        """Start the service on the chain. The chain continues across restarts."""
        self.settings = self.settings.model_copy(update=settings)
        self.line = FlakyTransport(AsgiTransport(self.localnet.rpc_app))
        self.line.lose_requests = lose_requests or self.line.lose_requests
        self._stack = AsyncExitStack()
        self.service = await self._stack.enter_async_context(running(self.settings, self.localnet, transport=self.line))
        # Tests read the metrics right after each change.
        self.service.part(Metrics).remember = 0.0
        app = create_app(self.settings, self.service)
        self.client = await self._stack.enter_async_context(
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://localhost", timeout=60
            )
        )

    async def stop(self) -> None:
        await self._stack.aclose()

    async def restart(self, **settings: Any) -> None:
        await self.stop()
        await self.start(**settings)

    def keeper(self, service: Service | None = None, timer: Callable[[], float] = time.monotonic) -> Keeper:
        """Return a keeper on the chain's clock. The test calls its `tick`."""
        return Keeper(service or self.service, clock=self.clock, timer=timer)

    @asynccontextmanager
    async def twin(
        self, through: Callable[[bytes], Awaitable[bytes]] | None = None
    ) -> AsyncIterator[tuple[Service, FlakyTransport]]:
        """Run another node: a service on the same chain, with the same keys and organisation and a separate database.

        `through` sends its requests to the chain.
        """
        folder = self.settings.data_dir / f"twin-{next(self._numbers)}"
        shutil.copytree(self.settings.data_dir / "keys", folder / "keys")
        settings, line = (
            self.settings.model_copy(update={"data_dir": folder, **self._own_database()}),
            FlakyTransport(through or AsgiTransport(self.localnet.rpc_app)),
        )
        own = self.service.db.read_now(lambda conn: organisation(conn, self.org))
        assert own is not None
        async with running(settings, self.localnet, transport=line) as service:
            await service.db.write(lambda conn: insert_record(conn, own))
            await service.indexer.catch_up()
            await service.projector.catch_up()
            yield service, line

    @asynccontextmanager
    async def node(self, **settings: Any) -> AsyncIterator["ServiceWorld"]:
        """Run another node on the same PostgreSQL database.

        It has the same keys, its own folder and its own connection to the chain.
        """
        folder = self.settings.data_dir / f"node-{next(self._numbers)}"
        shutil.copytree(self.settings.data_dir / "keys", folder / "keys")
        other = ServiceWorld(folder)
        other.settings = self.settings.model_copy(update={"data_dir": folder, **settings})
        other.localnet, other.clock = self.localnet, self.clock
        other.org, other.keys, other._numbers = self.org, self.keys, self._numbers
        await other.start()
        try:
            yield other
        finally:
            await other.stop()

    @property
    def build(self) -> PresentInstructions:
        """Return a builder of the organisation's instructions that starts from the current state of the chain."""
        service = self.service
        return on_localnet(self.localnet, service.codec, service.addresses, Pubkey.from_string(self.org))

    # Setting up

    async def organisation(self, org_id: str) -> str:
        """Create an organisation with a reserve of 1,000,000 USDC."""
        made = await organisations.create(self.service, org_id)
        await self.localnet.mint_usdc(self.service.instructions(made.org).reserve_tokens, RESERVE)
        # Check now, so that no test finds the deposit's event among its own events.
        await self.service.indexer.check(late=False)
        await self.catch_up()
        return made.org

    def key(self, role: Role, wallet_id: str | None = None, org: str | None = None) -> str:
        return self.service.part(KeyRing).create(
            org=org or self.org, role=role, wallet_id=wallet_id, name="test", live=False
        )

    async def catch_up(self) -> None:
        """Bring all on-chain changes into the read models."""
        await self.service.indexer.catch_up()
        await self.service.projector.catch_up()

    async def policy(self, **rules: Any) -> Json:
        return await self.ok("POST", "/v1/policies", {"name": f"Policy {next(self._numbers)}", **rules})

    async def wallet(self, policy_id: str = "pol_permissive", funds: str | None = "100", **fields: Any) -> Json:
        body = {"agentId": f"agent-{next(self._numbers)}", "label": "Agent", "policyId": policy_id, **fields}
        made = await self.ok("POST", "/v1/wallets", body)
        if funds is not None:
            await self.ok("POST", f"/v1/wallets/{made['wallet_id']}/fund", {"amount": funds, "currency": "USDC"})
        return made

    async def session(self, wallet: Json) -> str:
        return str((await self.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/rotate-token", {}))["session_token"])

    async def payee(self, lamports: int = 0) -> str:
        """Return a new address that already has a USDC account."""
        owner = Keypair().pubkey()
        await self.token_account(owner)
        if lamports:
            await self.localnet.airdrop(owner, lamports)
        return str(owner)

    async def token_account(self, owner: Pubkey) -> Pubkey:
        """Open an owner's associated USDC account and return its address."""
        signers = self.service.signers
        build = self.build
        await self.land([build.create_token_account(payer=signers.fee_payer.pubkey(), owner=owner)])
        return self.service.addresses.token_account(owner)

    async def later(self, seconds: float) -> None:
        """Move the chain's clock forward and inform the service."""
        until = await self.service.clock.moment_ms() + seconds * 1000
        self.clock.ahead += seconds
        await self.service.chain.blockhash(fresh=True)
        await self.service.clock.read()
        # The chain reports whole seconds, so the service may place its time within the new second a little too early.
        while self.service.clock.now_ms() < until:  # noqa: ASYNC110 - a clock sets no event
            await asyncio.sleep(0.02)

    # Requests

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        authorised = {"Authorization": f"Bearer {key or self.keys['admin']}", **(headers or {})}
        return await self.client.request(method, path, json=body, headers=authorised)

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Json:
        response = await self.call(method, path, body, **options)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def pay(self, wallet: Json, to: str, amount: str, **options: Any) -> httpx.Response:
        session = options.pop("session", None)
        body = {"walletId": wallet["wallet_id"], "to": to, "amount": amount, "currency": "USDC"}
        body.update(options.pop("body", {}))
        headers = {**({"Session-Token": session} if session else {}), **options.pop("headers", {})}
        return await self.call("POST", "/v1/payments", body, headers=headers, **options)

    async def unsent_payment(self, to: str) -> Attempt:
        """Make a pending payment of one USDC from a new wallet, stored but not sent."""
        wallet = await self.wallet()
        self.line.lose_requests = lambda name: name == "sendTransaction"
        tx_id = error_of(await self.pay(wallet, to, "1"), 503, "chain_unavailable")["tx_id"]
        self.line.mend()
        found = self.service.db.read_now(lambda conn: attempt(conn, tx_id))
        assert found is not None
        return found

    # The chain

    async def fields(self, address: Pubkey | str) -> dict[str, Any]:
        """Return the fields of an account of the program on the chain."""
        account = await self.service.chain.account(Pubkey.from_string(str(address)))
        assert account is not None
        return account.decode(self.service.codec).data

    async def org_update(self, signer: Pubkey, **changes: Any) -> Instruction:
        """Return the instruction that changes the organisation from its current on-chain state."""
        sequence: int = (await self.fields(self.org))["authority_sequence"]
        return self.build.update_org(signer=signer, expected_sequence=sequence, **changes)

    async def land(self, instructions: Sequence[Instruction], *signers: Signer) -> SignatureStatus:
        """Send a transaction without the service, and wait for its outcome."""
        chain, signed = self.service.chain, await self.signed_outside(instructions, *signers)
        await chain.send(signed.raw)
        status = await chain.confirm(signed.signature, timeout=5)
        assert status is not None
        return status

    async def signed_outside(self, instructions: Sequence[Instruction], *signers: Signer) -> Signed:
        """Sign with a separate fee payer. A transaction with the service as fee payer would count as a lost commit."""
        chain, payer = self.service.chain, self._outsider
        if await chain.account(payer.pubkey()) is None:
            await chain.confirm(await chain.airdrop(payer.pubkey(), 10**10), timeout=5)
        blockhash = await chain.blockhash(fresh=True)
        needed = (*signers, self.service.signers.fee_payer)
        return sign(instructions, payer=payer, signers=needed, blockhash=blockhash.hash)

    async def accounts(self, *addresses: str | Pubkey) -> list[bytes | None]:
        """Return the on-chain accounts at these addresses as bytes: owner, lamports and data."""
        keys = [Pubkey.from_string(one) if isinstance(one, str) else one for one in addresses]
        found = await self.service.chain.accounts(keys)
        return [None if one is None else bytes(one.owner) + one.lamports.to_bytes(8) + one.data for one in found]

    async def signatures(self, address: str) -> list[str]:
        """Return the signatures of all transactions that name an address."""
        options = {"commitment": "confirmed"}
        found = await self.service.chain.call("getSignaturesForAddress", [address, options])
        return [one["signature"] for one in found]

    async def balance(self, owner: str) -> int:
        """Return the micro-USDC that an address owns."""
        tokens = self.service.addresses.token_account(Pubkey.from_string(owner))
        return await self.service.chain.token_balance(tokens) or 0

    def wallet_record(self, wallet_id: str) -> WalletRecord:
        found = self.service.db.read_now(lambda conn: wallet(conn, self.org, wallet_id, now_ms()))
        assert found is not None
        return found

    def policy_record(self, policy_id: str) -> PolicyRecord:
        found = self.service.db.read_now(lambda conn: policy(conn, self.org, policy_id))
        assert found is not None
        return found

    def vault_accounts(self, wallet: Json) -> list[Pubkey]:
        """Return every account that a payment of this wallet might change, except the payee's and the fee payer."""
        found = self.wallet_record(wallet["wallet_id"])
        vault = Pubkey.from_string(found.vault)
        policy = Pubkey.from_string(found.policy.address)
        return [vault, self.service.addresses.token_account(vault), policy, Pubkey.from_string(self.org)]


def error_of(response: httpx.Response, status: int, code: str) -> Json:
    """Check an answer's envelope, status and code, and return its error object."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body: Json = response.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert error["docs"].endswith(f"/docs/errors/{code}")
    assert error["request_id"] == response.headers["request-id"]
    return error
