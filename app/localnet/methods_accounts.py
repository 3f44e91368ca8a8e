"""RPC methods about accounts and tokens.

Searches (getProgramAccounts, getTokenAccountsByOwner) are answered from what is on disk; at commitment `processed` they
first wait until everything executed is. They find accounts made by transactions or at genesis, not built-in programs.
"""

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from app.localnet import base58, params, tokens
from app.localnet.context import ACCOUNT_FIELDS, Method, Node, commitment_of, context_config
from app.localnet.encoding import account_json
from app.localnet.errors import MethodError, invalid_params
from app.localnet.params import Commitment

_MAX_ACCOUNTS = 100
_MAX_FILTERS = 4
_MAX_MEMCMP_BYTES = 128

_account_config = params.config("RpcAccountInfoConfig", ACCOUNT_FIELDS)


def _shown(node: Node, account: Account, config: dict[str, Any], default_encoding: str = "binary") -> dict[str, Any]:
    encoding = config.get("encoding", default_encoding)
    return account_json(account, encoding, config.get("dataSlice"), node.chain.decimals)


def get_balance(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return the lamports of an account."""
    account = node.chain.account(address, commitment_of(config))
    return node.with_context(config, account.lamports if account else 0)


def get_account_info(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return an account, null when it does not exist."""
    slot_checked = node.with_context(config, None)
    account = node.chain.account(address, commitment_of(config))
    if account is not None:
        slot_checked["value"] = _shown(node, account, config)
    return slot_checked


def get_multiple_accounts(node: Node, addresses: list[Pubkey], config: dict[str, Any]) -> dict[str, Any]:
    """Return up to 100 accounts of one moment."""
    answer = node.with_context(config, None)
    accounts = [node.chain.account(address, commitment_of(config)) for address in addresses]
    answer["value"] = [account and _shown(node, account, config, "base64") for account in accounts]
    return answer


# Searches


def _filter(value: Any) -> tuple[str, list[Any]]:
    """Read one filter of getProgramAccounts into an SQL condition and its values."""
    if value == "tokenAccountState":
        value = {"tokenAccountState": None}
    if not isinstance(value, dict) or len(value) != 1:
        raise invalid_params("Invalid params: invalid value: map, expected map with a single key.")
    ((kind, detail),) = value.items()
    params.choice("dataSize", "memcmp", "tokenAccountState")(kind)
    if kind == "dataSize":
        return " AND length(data) = ?", [params.unsigned(maximum=2**63 - 1)(detail)]
    if kind == "tokenAccountState":
        return " AND token_owner IS NOT NULL", []
    read = params.config("Memcmp", {"offset": params.usize}, frozenset({"offset", "bytes"}))(detail)
    expected = _memcmp_bytes(detail["bytes"], detail.get("encoding"))
    if len(expected) > _MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: DataTooLarge")
    # SQLite counts from 1 and refuses positions beyond its integers; no account reaches there.
    return " AND substr(data, ?, ?) = ?", [min(read["offset"] + 1, 2**31), len(expected), expected]


def _memcmp_bytes(value: Any, encoding: Any) -> bytes:
    if isinstance(value, list):
        return bytes(params.sequence(params.unsigned("u8", 255))(value))
    text = params.string(value)
    if len(text) > 2 * _MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: DataTooLarge")
    if encoding == "base64":
        try:
            return params.base64_bytes(text)
        except MethodError as error:
            cause = error.message.removeprefix("invalid base64 encoding: ")
            raise invalid_params(f"Invalid param: Base64DecodeError({cause})") from None
    try:
        return base58.decode(text)
    except ValueError as error:
        raise invalid_params(f"Invalid param: Base58DecodeError({error})") from None


_program_accounts_config = params.config(
    "RpcProgramAccountsConfig",
    {
        **ACCOUNT_FIELDS,
        "filters": params.sequence(_filter, _MAX_FILTERS, "Too many filters provided; max {}"),
        "withContext": params.boolean,
        "sortResults": params.boolean,
    },
)


async def get_program_accounts(node: Node, program: Pubkey, config: dict[str, Any]) -> Any:
    """Return the accounts a program owns that pass every filter, sorted by address."""
    answer = node.with_context(config, None)
    if commitment_of(config) is Commitment.PROCESSED:
        await node.chain.flush()
    filters = config.get("filters", [])
    conditions = "".join(condition for condition, _ in filters)
    values = [value for _, values in filters for value in values]
    answer["value"] = _listed(node, node.chain.storage.accounts_of_program(program, conditions, values), config)
    return answer if config.get("withContext") else answer["value"]


def _listed(node: Node, accounts: list[tuple[Pubkey, Account]], config: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"pubkey": str(address), "account": _shown(node, account, config)} for address, account in accounts]


def _token_filter(value: Any) -> tuple[str, Pubkey]:
    if not isinstance(value, dict) or len(value) != 1:
        raise invalid_params("Invalid params: invalid value: map, expected map with a single key.")
    ((kind, detail),) = value.items()
    if kind not in {"mint", "programId"}:
        raise invalid_params(f"Invalid params: unknown variant `{kind}`, expected `mint` or `programId`.")
    return kind, params.pubkey(detail)


async def get_token_accounts_by_owner(
    node: Node, owner: Pubkey, wanted: tuple[str, Pubkey], config: dict[str, Any]
) -> dict[str, Any]:
    """Return the token accounts of a wallet, of one mint or of one token program."""
    answer = node.with_context(config, None)
    commitment = commitment_of(config)
    kind, key = wanted
    if kind == "mint":
        mint = node.chain.account(key, commitment)
        if mint is None:
            raise invalid_params("Invalid param: could not find mint")
        if not tokens.is_mint(mint):
            raise invalid_params("Invalid param: Token mint could not be unpacked")
    elif key not in tokens.PROGRAM_NAMES:
        raise invalid_params("Invalid param: unrecognized Token program id")
    if commitment is Commitment.PROCESSED:
        await node.chain.flush()
    found = [
        (address, account)
        for address, account in node.chain.storage.accounts_of_token_owner(owner)
        if key == (tokens.holding(account)[0] if kind == "mint" else account.owner)
    ]
    answer["value"] = _listed(node, found, config)
    return answer


# Tokens


def get_token_account_balance(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return the amount in a token account."""
    answer = node.with_context(config, None)
    account = node.chain.account(address, commitment_of(config))
    if account is None:
        raise invalid_params("Invalid param: could not find account")
    if not tokens.is_token_account(account):
        raise invalid_params("Invalid param: not a Token account")
    mint, _, amount = tokens.holding(account)
    decimals = node.chain.decimals(mint)
    if decimals is None:
        raise invalid_params("Invalid param: could not find mint")
    answer["value"] = tokens.ui_amount(amount, decimals)
    return answer


def get_token_supply(node: Node, mint: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return the supply of a mint."""
    answer = node.with_context(config, None)
    account = node.chain.account(mint, commitment_of(config))
    if account is None:
        raise invalid_params("Invalid param: could not find account")
    if not tokens.is_mint(account):
        raise invalid_params("Invalid param: not a Token mint")
    answer["value"] = tokens.ui_amount(tokens.supply(account), tokens.decimals(account))
    return answer


METHODS = {
    "getBalance": Method(get_balance, (params.pubkey, context_config), 1),
    "getAccountInfo": Method(get_account_info, (params.pubkey, _account_config), 1),
    "getMultipleAccounts": Method(
        get_multiple_accounts, (params.sequence(params.pubkey, _MAX_ACCOUNTS), _account_config), 1
    ),
    "getProgramAccounts": Method(get_program_accounts, (params.pubkey, _program_accounts_config), 1),
    "getTokenAccountsByOwner": Method(get_token_accounts_by_owner, (params.pubkey, _token_filter, _account_config), 2),
    "getTokenAccountBalance": Method(get_token_account_balance, (params.pubkey, context_config), 1),
    "getTokenSupply": Method(get_token_supply, (params.pubkey, context_config), 1),
}
