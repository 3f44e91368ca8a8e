"""Wires a service from its settings, and starts and stops its parts."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from cryptography.fernet import Fernet
from solders.pubkey import Pubkey

from app.access.keyring import KeyRing
from app.access.rate_limit import Peers
from app.access.recorder import Recorder
from app.access.request_log import RequestLog
from app.alerts.watcher import Watcher
from app.api.metrics import Metrics
from app.chain.addresses import Addresses
from app.chain.client import ChainClient
from app.chain.clock import ChainClock
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.identity import SameChain
from app.chain.nodes import transport_of
from app.chain.transport import AsgiTransport, Transport
from app.core.background import start_all
from app.core.outbound import Outbound
from app.core.paths import ConfigurationError, Paths, program_file
from app.core.role_keys import load_or_create
from app.core.settings import Settings
from app.core.signers import KeyFileError, Signers, read_secret, write_secret
from app.core.timestamps import now_seconds
from app.dashboard.live import FeedHub
from app.database.commit_log import CommitLog
from app.database.interface import Database
from app.exports.exporter import Exporter
from app.exports.layout import LEFT_OUT
from app.exports.links import DownloadLinks
from app.localnet import Localnet
from app.people.openid import CompanySignIn
from app.recipients.domains import DomainResolver
from app.server._background_jobs import WORKER, background_jobs
from app.server.data_folder import LOCALHOST, FolderChain, identify, remember, remembered
from app.server.databases import data_name, open_database, open_events, open_projector, require_intact, use_file
from app.server.plan_types import PLAN_TYPES
from app.store.values import get_value, put_value
from app.submission.brake import Brakes
from app.submission.context import Service
from app.submission.database_guard import DatabaseGuard
from app.submission.fee_payer import FeePayer
from app.submission.idempotency import Idempotency
from app.submission.recovery import Recovery
from app.submission.submitter import Submitter
from app.transactions.service import shown
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.urls import UrlRules
from app.x402.fetching import Fetcher
from app.x402.guard import RequestGuard
from idl.codec import Codec, load
from indexer import Indexer

#: Name of the stored value that shows whether a secret belongs to the database.
_SECRET_CHECK = "secret_check"  # noqa: S105 - a name


def codec_of(settings: Settings) -> Codec:
    """Return the program's codec, for the address in the settings or else the address in the IDL.

    Raises ConfigurationError if the configured program id is not an address.
    """
    if settings.program_id is None:
        return load()
    try:
        return load(Pubkey.from_string(settings.program_id))
    except ValueError:
        raise ConfigurationError(f"AGENT_VAULT_PROGRAM_ID: {settings.program_id} is not an address") from None


def open_localnet(settings: Settings) -> Localnet:
    """Return the embedded chain with the program. The chain's state is in the data folder."""
    program = codec_of(settings).program_id
    require_intact(settings.paths().localnet / "localnet.db")
    return Localnet.open(settings.paths().localnet, {program: program_file()}, now_seconds)


def prepare(settings: Settings) -> Paths:
    """Create the data folder, or make an existing one private to its owner, and return its paths.

    Raises ConfigurationError if the folder is accessible to others and belongs to another user.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        if settings.data_dir.stat().st_mode & 0o077:
            settings.data_dir.chmod(0o700)
    except PermissionError:
        raise ConfigurationError(f"{settings.data_dir} is accessible to others and belongs to another user") from None
    return settings.paths()


def open_signers(paths: Paths, settings: Settings) -> Signers:
    """Return the signing keys. In a new data folder, create them and the service's secret.

    Raises KeyFileError if a key is unusable, if the key of the fee payer or the operator is missing, or if the secret
    of an existing service is missing.
    """
    first = not paths.secret.exists()
    if first and (settings.keys_dir is not None or _has_secret(settings)):
        # With a new secret and new keys, no API key and no organisation would work.
        raise _missing_secret(settings)
    signers = load_or_create(paths.keys, settings, create=first)
    if first:
        # The secret is written last: while it is missing, the keys may be incomplete.
        write_secret(paths.secret, secrets.token_hex(32))
    return signers


def open_state(settings: Settings) -> tuple[Database, bytes]:
    """Return the database and the service's secret. A new database is bound to this secret.

    Raises KeyFileError if the secret is missing or unusable, or does not belong to the database, and ConfigurationError
    if the database cannot be used.
    """
    secret = service_secret(settings)
    db = open_database(settings, channel=f"agent_vault_{_derive(secret, b'signals').hex()[:32]}")
    check = _derive(secret, b"check").hex()
    known = db.read_now(lambda conn: get_value(conn, _SECRET_CHECK))
    if known is None:
        db.write_now(lambda conn: put_value(conn, _SECRET_CHECK, check))
    elif known != check:
        # With a different secret, no API key would be recognised, and nothing sealed could be opened.
        db.close()
        raise KeyFileError(f"{settings.paths().secret} is not the secret of {data_name(settings)}: {_remedy(settings)}")
    return db, secret


def service_secret(settings: Settings, file: Path | None = None) -> bytes:
    """Return the service's secret, or the secret in a copy of its file.

    Raises KeyFileError if the file is missing or unusable.
    """
    if file is None and not settings.paths().secret.exists():
        raise _missing_secret(settings)
    file = file or settings.paths().secret
    try:
        return bytes.fromhex(read_secret(file))
    except ValueError:
        raise KeyFileError(f"{file}: not a service's secret (64 hexadecimal digits)") from None


def _has_secret(settings: Settings) -> bool:
    """Return True if there is data that already belongs to a secret."""
    if settings.database_url is None:
        return settings.paths().database.exists()
    with closing(open_database(settings)) as db:
        return db.read_now(lambda conn: get_value(conn, _SECRET_CHECK)) is not None


def _missing_secret(settings: Settings) -> KeyFileError:
    what = f"{settings.paths().secret} is missing, the secret of {data_name(settings)}"
    return KeyFileError(f"{what}: {_remedy(settings)}")


def _remedy(settings: Settings) -> str:
    """Return the remedy for missing or wrong keys."""
    folder = settings.paths().keys
    if settings.database_url is None:
        return f"put back the folder {folder} that belongs to this data"
    return f"copy the first node's folder `keys` to {folder}, or name a copy of it in AGENT_VAULT_KEYS_DIR"


def key_ring(db: Database, secret: bytes, *, cache_seconds: float = 0.0) -> KeyRing:
    """Return the API keys of a database. A checked key is cached for ``cache_seconds``."""
    return KeyRing(db, _derive(secret, b"api keys"), cache_seconds=cache_seconds)


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hmac.new(secret, purpose, hashlib.sha256).digest()


def _seal(secret: bytes, purpose: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(_derive(secret, purpose)))


def _ws_urls(settings: Settings) -> list[str]:
    return [settings.ws_url] if settings.ws_url else [_ws_url(one) for one in settings.rpc_urls()]


def _own_urls(settings: Settings) -> list[str]:
    """Return the URLs of the service and its chain. The service sends no webhooks or paid requests to them."""
    local = (f"http://{LOCALHOST}:{one}" for one in (settings.port, settings.localnet_port, settings.localnet_port + 1))
    return [*local, settings.base_url(), *settings.rpc_urls(), *_ws_urls(settings)]


def _ws_url(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"{host}:{parts.port + 1}" if parts.port else host
    return urlunsplit(("wss" if parts.scheme == "https" else "ws", place, parts.path, parts.query, ""))


@asynccontextmanager
async def running(
    settings: Settings,
    localnet: Localnet | None = None,
    *,
    transport: Transport | None = None,
    beside: bool = False,
) -> AsyncIterator[Service]:
    """Run a service with its background jobs, as the settings and its roles require, until the context ends.

    The chain is ``localnet``, reached without a socket, or else at ``settings.rpc_url``. ``transport`` replaces the
    connection to either. ``beside`` is True for a process next to a service. A new data folder is bound to the chain.
    Raises ConfigurationError, for example if the folder belongs to another chain, and KeyFileError if the keys or the
    secret are missing or do not belong to the data.
    """
    paths = prepare(settings)
    async with AsyncExitStack() as stack:
        signers = open_signers(paths, settings)
        if not beside and settings.database_url is None:
            require_intact(paths.database, paths.events)
        db, secret = open_state(settings)
        stack.callback(db.close)
        codec = codec_of(settings)
        known = db.read_now(remembered)
        expected = known.identity.genesis_hash if known else None
        if transport is None:
            transport = (
                transport_of(settings.rpc_urls(), expected) if localnet is None else AsgiTransport(localnet.rpc_app)
            )
        transport = node = SameChain(transport, expected)
        chain = ChainClient(transport, program_id=codec.program_id)
        stack.push_async_callback(chain.aclose)
        identity = await identify(settings, node, chain, codec.program_id, known)
        if known is None:
            url = settings.rpc_url or f"http://{LOCALHOST}:{settings.localnet_port}"
            await db.write(lambda conn: remember(conn, FolderChain(identity, url)))
        if not beside:
            db.ledger = CommitLog(settings.data_dir, str(settings.port))
            if settings.database_url is None:
                stack.callback(use_file(db, db.ledger, paths))
                if not paths.backed_up.exists():
                    paths.backed_up.touch()
        events = open_events(settings, db)
        indexer = Indexer(
            transport=transport,
            codec=codec,
            events=events,
            ws_urls=[] if localnet else _ws_urls(settings),
        )
        stored = await indexer.newest_block_time()
        clock = ChainClock(ChainClient(transport, program_id=codec.program_id), stored=stored)
        with suppress(ChainUnavailable, RpcError):  # the clock's first background round reports this failure
            await clock.read()
        projector = open_projector(db, events, indexer, payer=str(signers.fee_payer_address))
        indexer.subscribe(projector.notify)
        recorder = Recorder(db)
        requests = RequestLog(db, kept=settings.request_log_size)
        brake = Brakes(db, PLAN_TYPES.values(), recorder)
        await brake.load()
        fee_payer = FeePayer(signers.fee_payer, settings, chain)
        submitter = Submitter(
            db=db,
            chain=chain,
            indexer=indexer,
            projector=projector,
            fee_payer=fee_payer,
            confirm_timeout=settings.confirm_timeout,
            types=PLAN_TYPES,
            brake=brake,
            clock=clock,
        )
        domains = DomainResolver(timeout=settings.domain_timeout)
        stack.callback(domains.close)
        company = CompanySignIn(settings)
        stack.callback(company.close)
        rules = UrlRules(local=identity.cluster == "localnet", own=_own_urls(settings))
        delivery_client = DeliveryClient(_seal(secret, b"webhook secrets"), rules, lookups=settings.webhooks_at_once)
        stack.callback(delivery_client.close)
        guard = RequestGuard(rules)
        fetcher = Fetcher(
            Outbound(allowed=guard.allowed),
            seconds=settings.x402_timeout,
            most_bytes=settings.x402_max_bytes,
            at_once=settings.x402_at_once,
        )
        stack.callback(fetcher.close)

        async def catch_up() -> int:
            slot = await chain.slot()
            await indexer.catch_up(seen=slot)
            await projector.catch_up()
            return slot

        keys = key_ring(db, secret, cache_seconds=settings.key_cache_seconds)
        exporter = Exporter(
            db=db,
            folder=paths.exports,
            program_id=str(codec.program_id),
            lifetime=settings.export_lifetime,
            show=lambda *row: shown(settings, identity.cluster, *row).model_dump(exclude=dict(LEFT_OUT)),
            catch_up=catch_up,
            writes=settings.exports and settings.has_role(WORKER),
        )
        recovery = Recovery(
            db, submitter, clock, interval=settings.recovery_interval, grace=2 * settings.confirm_timeout
        )
        database_guard = DatabaseGuard(db, catch_up)
        hub = FeedHub(db, most=settings.live_streams)
        projector.subscribe(hub.changed)
        parts: list[object] = [
            Metrics(),
            Peers(),
            keys,
            recorder,
            requests,
            exporter,
            recovery,
            delivery_client,
            guard,
            fetcher,
            domains,
            company,
            database_guard,
            fee_payer,
            hub,
            Idempotency(db, wait=settings.idempotency_wait),
            DownloadLinks(settings, _derive(secret, b"download links")),
            *filter(None, [localnet]),
        ]
        if settings.alerts:
            parts.append(Watcher(db, projector, settings, chain_clock=clock.seen_ms))
        service = Service(
            settings=settings,
            db=db,
            codec=codec,
            addresses=Addresses(codec.program_id, Pubkey.from_string(identity.mint)),
            identity=identity,
            chain=chain,
            clock=clock,
            indexer=indexer,
            projector=projector,
            signers=signers,
            submitter=submitter,
            brake=brake,
            parts={type(part): part for part in parts},
        )
        await start_all(stack, *background_jobs(service, beside=beside))
        yield service
