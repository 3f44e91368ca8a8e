"""RPC methods about accounts and tokens.

Searches (getProgramAccounts, getTokenAccountsByOwner) read the state on disk. At commitment `processed`, they first
wait until all executed transactions are written. They find accounts created by transactions or at genesis, but not
built-in programs.
"""

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from app.localnet import params, tokens
from app.localnet.context import ACCOUNT_FIELDS, Method, Node, account_config, commitment_of, context_config
from app.localnet.encoding import account_json
from app.localnet.errors import invalid_params
from app.localnet.filters import account_filters
from app.localnet.params import Commitment

_MAX_ACCOUNTS = 100


def _account(node: Node, address: Pubkey, config: dict[str, Any]) -> Account | None:
    return node.chain.account(address, commitment_of(config))


def _shown(
    node: Node, account: Account | None, config: dict[str, Any], default_encoding: str = "binary"
) -> dict[str, Any] | None:
    if account is None:
        return None
    encoding = config.get("encoding", default_encoding)
    return account_json(account, encoding, config.get("dataSlice"), node.chain.decimals)


def get_balance(node: Node, address: Pubkey, config: dict[str, Any]) -> int:
    """Return the lamports of an account, or 0 if it does not exist."""
    account = _account(node, address, config)
    return account.lamports if account else 0


def get_account_info(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return an account, or null if it does not exist."""
    return _shown(node, _account(node, address, config), config)


def get_multiple_accounts(node: Node, addresses: list[Pubkey], config: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Return up to 100 accounts as of the same moment, with null for each that does not exist."""
    return [_shown(node, _account(node, address, config), config, "base64") for address in addresses]


# Searches


program_accounts_config = params.config(
    "RpcProgramAccountsConfig",
    {
        **ACCOUNT_FIELDS,
        "filters": account_filters,
        "withContext": params.boolean,
        "sortResults": params.boolean,
    },
)


async def get_program_accounts(node: Node, program: Pubkey, config: dict[str, Any]) -> Any:
    """Return the accounts that a program owns and that pass every filter, sorted by address."""
    answer = node.with_context(config, None)
    if commitment_of(config) is Commitment.PROCESSED:
        await node.chain.flush()
    filters = config.get("filters", [])
    conditions = "".join(one.condition for one in filters)
    values = [value for one in filters for value in one.values]
    answer["value"] = _listed(node, node.chain.storage.accounts_of_program(program, conditions, values), config)
    return answer if config.get("withContext") else answer["value"]


def _listed(node: Node, accounts: list[tuple[Pubkey, Account]], config: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"pubkey": str(address), "account": _shown(node, account, config)} for address, account in accounts]


def _token_filter(value: Any) -> tuple[str, Pubkey]:
    kind, detail = params.single_entry(value)
    if kind not in {"mint", "programId"}:
        raise invalid_params(f"Invalid params: unknown variant `{kind}`, expected `mint` or `programId`.")
    return kind, params.pubkey(detail)


async def get_token_accounts_by_owner(
    node: Node, owner: Pubkey, wanted: tuple[str, Pubkey], config: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the token accounts that an owner has for one mint or under one token program."""
    kind, key = wanted
    if kind == "mint":
        mint = _account(node, key, config)
        if mint is None:
            raise invalid_params("Invalid param: could not find mint")
        if tokens.read_mint(mint) is None:
            raise invalid_params("Invalid param: Token mint could not be unpacked")
    elif key not in tokens.PROGRAM_NAMES:
        raise invalid_params("Invalid param: unrecognized Token program id")
    if commitment_of(config) is Commitment.PROCESSED:
        await node.chain.flush()
    found = [
        (address, account)
        for address, account in node.chain.storage.accounts_of_token_owner(owner)
        if account.owner == key or ((token := tokens.read_account(account)) and token.mint == key)
    ]
    return _listed(node, found, config)


# Tokens


def _existing(node: Node, address: Pubkey, config: dict[str, Any]) -> Account:
    account = _account(node, address, config)
    if account is None:
        raise invalid_params("Invalid param: could not find account")
    return account


def get_token_account_balance(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return the amount in a token account."""
    token = tokens.read_account(_existing(node, address, config))
    if token is None:
        raise invalid_params("Invalid param: not a Token account")
    decimals = node.chain.decimals(token.mint)
    if decimals is None:
        raise invalid_params("Invalid param: could not find mint")
    return tokens.ui_amount(token.amount, decimals)


def get_token_supply(node: Node, address: Pubkey, config: dict[str, Any]) -> dict[str, Any]:
    """Return the supply of a mint."""
    mint = tokens.read_mint(_existing(node, address, config))
    if mint is None:
        raise invalid_params("Invalid param: not a Token mint")
    return tokens.ui_amount(mint.supply, mint.decimals)


_ADDRESSES = params.sequence(params.pubkey, _MAX_ACCOUNTS)

METHODS = {
    "getBalance": Method(get_balance, (params.pubkey, context_config), 1, in_context=True),
    "getAccountInfo": Method(get_account_info, (params.pubkey, account_config), 1, in_context=True),
    "getMultipleAccounts": Method(get_multiple_accounts, (_ADDRESSES, account_config), 1, in_context=True),
    "getProgramAccounts": Method(get_program_accounts, (params.pubkey, program_accounts_config), 1),
    "getTokenAccountsByOwner": Method(
        get_token_accounts_by_owner, (params.pubkey, _token_filter, account_config), 2, in_context=True
    ),
    "getTokenAccountBalance": Method(get_token_account_balance, (params.pubkey, context_config), 1, in_context=True),
    "getTokenSupply": Method(get_token_supply, (params.pubkey, context_config), 1, in_context=True),
}
