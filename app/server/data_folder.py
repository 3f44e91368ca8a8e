"""Binds a data folder to its chain, so that no command uses the folder with another chain."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from solders.pubkey import Pubkey
from solders.token.state import Mint
from sqlalchemy import Connection

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.identity import USDC_MINTS, ChainIdentity, SameChain, WrongChainError, chain_name, cluster_of
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.localnet.genesis import USDC_DECIMALS, USDC_MINT
from app.server.databases import data_name, may_have_data, open_database
from app.store.values import get_value, put_value

_log = structlog.get_logger(__name__)

#: The embedded chain has a faucet and no passwords, so `serve` never lets it listen for other machines. Only
#: `agent-vault localnet --host` does.
LOCALHOST = "127.0.0.1"
#: Names of the database values that store the folder's chain and its node's address.
_GENESIS, _PROGRAM, _MINT, _RPC_URL = "genesis_hash", "program_id", "usdc_mint", "rpc_url"
#: Prefixes of the addresses of the loaders. Every deployed program's account is owned by a loader.
_LOADERS = ("BPFLoader", "LoaderV")


@dataclass(frozen=True, slots=True)
class FolderChain:
    """The chain that a data folder belongs to, and the last stored address of the chain's node."""

    identity: ChainIdentity
    rpc_url: str


def remembered(connection: Connection) -> FolderChain | None:
    """Return the chain that a database's folder is bound to, or None if it is not bound to a chain yet."""
    genesis, program, mint, url = (get_value(connection, name) for name in (_GENESIS, _PROGRAM, _MINT, _RPC_URL))
    if genesis is None or program is None or mint is None or url is None:
        return None
    return FolderChain(ChainIdentity(genesis, program, mint), url)


def remember(connection: Connection, chain: FolderChain) -> None:
    """Bind the folder of a database to a chain."""
    identity = chain.identity
    values: Mapping[str, str] = {
        _GENESIS: identity.genesis_hash,
        _PROGRAM: identity.program_id,
        _MINT: identity.mint,
        _RPC_URL: chain.rpc_url,
    }
    for name, value in values.items():
        put_value(connection, name, value)


def folder_chain(settings: Settings) -> FolderChain | None:
    """Return the chain that a folder is bound to, or None if it is not bound to a chain yet."""
    if not may_have_data(settings):
        return None
    with closing(open_database(settings)) as db:
        return db.read_now(remembered)


def with_folder(settings: Settings) -> Settings:
    """Return the settings of a process with the embedded chain or with `rpc_url`.

    If the settings name no program, the folder's program is used. With `rpc_url`, the folder's USDC mint is used if the
    settings name none. Raises ConfigurationError if the process would run the embedded chain in the folder of another
    chain.
    """
    paths = settings.paths()
    known = folder_chain(settings)
    if known is None:
        return settings
    if settings.rpc_url is None and not paths.localnet.exists():
        belongs = f"{data_name(settings)} belongs to {chain_name(known.identity.genesis_hash)}"
        if settings.database_url is not None:
            raise ConfigurationError(
                f"{belongs}, which is not in {paths.root}: all nodes must use the same chain, so name its node "
                "with --rpc-url"
            )
        raise ConfigurationError(
            f"{belongs}, so the embedded chain cannot run in it: name that chain's node with --rpc-url, or another "
            "folder with --data-dir"
        )
    changes = {"program_id": settings.program_id or known.identity.program_id}
    if settings.rpc_url is not None:
        changes["usdc_mint"] = settings.usdc_mint or known.identity.mint
    return settings.model_copy(update=changes)


def sidecar_settings(settings: Settings) -> Settings:
    """Return the settings of a process that works on a service's data, with or without a running service.

    Without `rpc_url`, the chain is the folder's or, in a new folder, the embedded chain on `localnet_port`. The service
    alone sends webhooks and alerts, because on SQLite only one process may send them. It alone writes exports, because
    they would wait for this process's chain. It alone runs the reconciliation, because its metrics report the result.
    """
    known = folder_chain(settings)
    url = settings.rpc_url or (known.rpc_url if known else f"http://{LOCALHOST}:{settings.localnet_port}")
    changes = {"rpc_url": url, "webhooks": False, "alerts": False, "exports": False, "reconciliation": False}
    return with_folder(settings.model_copy(update=changes))


def require_data(settings: Settings) -> None:
    """Raise ConfigurationError unless the folder has a service's data. A mistyped folder must not be created.

    With a database on a server, nothing is checked here.
    """
    if not may_have_data(settings):
        raise ConfigurationError(f"there is no service data in {settings.data_dir}; name its folder with --data-dir")


def existing_sidecar_settings(settings: Settings) -> Settings:
    """Return ``sidecar_settings`` for commands that need a service's data. Raises the error of ``require_data``."""
    require_data(settings)
    return sidecar_settings(settings)


async def identify(
    settings: Settings, node: SameChain, chain: ChainClient, program_id: Pubkey, known: FolderChain | None
) -> ChainIdentity:
    """Return the chain that the node, the settings and the folder agree on.

    If the node does not answer, returns the folder's chain, and `node` checks it later. Raises ConfigurationError if
    these three disagree, if the program or the mint is not on the chain, or if the node of a new folder does not
    answer.
    """
    place = node_name(settings)
    try:
        genesis = await node.genesis_hash()
        mint = _mint(settings, genesis, known)
        found = ChainIdentity(genesis, str(program_id), str(mint))
        _refuse_other(settings, found, known)
        await _check_accounts(chain, found, place)
    except WrongChainError as error:
        assert known is not None
        raise ConfigurationError(
            f"{data_name(settings)} belongs to {chain_name(known.identity.genesis_hash)}, but {place}: "
            f"{error}; name a node of the folder's chain with --rpc-url, or another folder with --data-dir"
        ) from None
    except (ChainUnavailable, RpcError) as error:
        if known is None:
            raise ConfigurationError(
                f"no usable response from {place} ({error}); start it, or name another node with --rpc-url"
            ) from None
        _log.warning("chain_unavailable_at_start", error=str(error))
        mint = _mint(settings, known.identity.genesis_hash, known)
        found = ChainIdentity(known.identity.genesis_hash, str(program_id), str(mint))
        _refuse_other(settings, found, known)
    return found


def node_name(settings: Settings) -> str:
    """Return a readable name of the chain's node or nodes, without any password in their URLs."""
    if settings.rpc_url is None:
        return "the embedded chain"
    places = [f"{one.hostname}" + (f":{one.port}" if one.port else "") for one in map(urlsplit, settings.rpc_urls())]
    return f"the node at {places[0]}" if len(places) == 1 else f"the nodes at {' and '.join(places)}"


def _mint(settings: Settings, genesis_hash: str, known: FolderChain | None) -> Pubkey:
    if settings.rpc_url is None:
        return USDC_MINT
    cluster = cluster_of(genesis_hash)
    named = settings.usdc_mint or (known.identity.mint if known else None) or USDC_MINTS.get(cluster)
    if named is None and cluster == "localnet":
        return USDC_MINT
    if named is None:
        raise ConfigurationError(f"{cluster} has no known USDC mint: give its address with --usdc-mint")
    try:
        return Pubkey.from_string(named)
    except ValueError:
        raise ConfigurationError(f"{named} is not an address: give the USDC mint's address with --usdc-mint") from None


def _refuse_other(settings: Settings, found: ChainIdentity, known: FolderChain | None) -> None:
    """Raise ConfigurationError if the folder belongs to another program or mint."""
    if known is None:
        return
    for what, ours, theirs, remedy in (
        ("program", known.identity.program_id, found.program_id, "AGENT_VAULT_PROGRAM_ID"),
        ("USDC mint", known.identity.mint, found.mint, "--usdc-mint or AGENT_VAULT_USDC_MINT"),
    ):
        if ours != theirs:
            raise ConfigurationError(
                f"{data_name(settings)} belongs to the {what} {ours}, not to {theirs}; omit "
                f"{remedy}, or name another folder with --data-dir"
            )


async def _check_accounts(chain: ChainClient, found: ChainIdentity, place: str) -> None:
    """Raise ConfigurationError if the program or the mint is not on the chain."""
    program, mint = await chain.accounts([Pubkey.from_string(found.program_id), Pubkey.from_string(found.mint)])
    if program is None or not str(program.owner).startswith(_LOADERS):
        raise ConfigurationError(
            f"{place} has no program {found.program_id}: deploy it there, or name its address with "
            "AGENT_VAULT_PROGRAM_ID"
        )
    if mint is None or mint.owner != TOKEN_PROGRAM or not _is_usdc(mint.data):
        raise ConfigurationError(
            f"{found.mint} is not a mint of the token program with {USDC_DECIMALS} decimals on {place}: give the USDC "
            "mint's address with --usdc-mint"
        )


def _is_usdc(data: bytes) -> bool:
    try:
        mint = Mint.from_bytes(data)
    except ValueError:
        return False
    return bool(mint.is_initialized and mint.decimals == USDC_DECIMALS)
