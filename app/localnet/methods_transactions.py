"""RPC methods that run transactions."""

from typing import Any

from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from app.localnet import meta, params, transaction_errors, transactions
from app.localnet.bank import Run
from app.localnet.chain import TransactionRefusedError
from app.localnet.context import COMMITMENT_FIELDS, Method, Node, account_encoding, transaction_encoding
from app.localnet.encoding import account_json
from app.localnet.errors import PREFLIGHT_FAILURE, MethodError, invalid_params
from app.localnet.params import Commitment
from app.localnet.timeline import MAX_BLOCKHASH_AGE

_send_config = params.config(
    "RpcSendTransactionConfig",
    {
        "skipPreflight": params.boolean,
        "preflightCommitment": params.strict_commitment,
        "encoding": transaction_encoding,
        "maxRetries": params.usize,
        "minContextSlot": params.u64,
    },
)

_simulated_accounts = params.config(
    "RpcSimulateTransactionAccountsConfig",
    {"encoding": account_encoding, "addresses": params.sequence(params.string)},
    frozenset({"addresses"}),
)

_simulate_config = params.config(
    "RpcSimulateTransactionConfig",
    {
        **COMMITMENT_FIELDS,
        "sigVerify": params.boolean,
        "replaceRecentBlockhash": params.boolean,
        "encoding": transaction_encoding,
        "accounts": _simulated_accounts,
        "innerInstructions": params.boolean,
    },
)

_airdrop_config = params.config("RpcRequestAirdropConfig", {})


def _parsed(text: str, config: dict[str, Any]) -> VersionedTransaction:
    return transactions.parse(params.wire_bytes(text, config.get("encoding", "base58"), transactions.TYPE_NAME))


def send_transaction(node: Node, text: str, config: dict[str, Any]) -> str:
    """Execute a transaction and return its signature.

    With `skipPreflight`, a transaction that cannot land is dropped silently, as on a validator; its status stays null.
    The chain executes immediately, so `maxRetries` has no effect.
    """
    node.slot_for({**config, "commitment": config.get("preflightCommitment", Commitment.FINALIZED)})
    transaction = _parsed(text, config)
    preflight = not config.get("skipPreflight", False)
    try:
        node.chain.send(transaction, preflight=preflight)
    except TransactionRefusedError as refused:
        if preflight:
            message = f"Transaction simulation failed: {transaction_errors.describe(refused.err)}"
            raise MethodError(PREFLIGHT_FAILURE, message, _outcome(refused.err, refused.run)) from None
    return str(transaction.signatures[0])


def simulate_transaction(node: Node, text: str, config: dict[str, Any]) -> dict[str, Any]:
    """Run a transaction on the executed state without changing it."""
    verify = config.get("sigVerify", False)
    replace = config.get("replaceRecentBlockhash", False)
    transaction = _parsed(text, config)
    if replace and verify:
        raise invalid_params("sigVerify may not be used with replaceRecentBlockhash")
    answer = node.with_context(config, None)
    replacement = None
    if replace:
        slot = node.chain.slot()
        blockhash = node.chain.timeline.blockhash(slot)
        transaction = transactions.with_blockhash(transaction, blockhash)
        replacement = {"blockhash": str(blockhash), "lastValidBlockHeight": slot + MAX_BLOCKHASH_AGE}
    wanted = config.get("accounts")
    addresses = _wanted_addresses(wanted, transaction) if wanted else []
    run: Run | None
    try:
        run = node.chain.simulate(transaction, verify=verify, check_age=not replace)
        err = run.err
    except TransactionRefusedError as refused:
        run, err = None, refused.err
    value = _outcome(err, run, inner=config.get("innerInstructions", False))
    value["replacementBlockhash"] = replacement
    if wanted:
        value["accounts"] = [_after(node, run, address, wanted) for address in addresses]
    answer["value"] = value
    return answer


def _wanted_addresses(wanted: dict[str, Any], transaction: VersionedTransaction) -> list[Pubkey]:
    if wanted.get("encoding") in {"binary", "base58"}:
        raise invalid_params("base58 encoding not supported")
    most = len(transaction.message.account_keys)
    if len(wanted["addresses"]) > most:
        raise invalid_params(f"Too many accounts provided; max {most}")
    return [params.pubkey(address) for address in wanted["addresses"]]


def _after(node: Node, run: Run | None, address: Pubkey, wanted: dict[str, Any]) -> dict[str, Any] | None:
    if run is None or run.err is not None:
        return None
    account = run.after.get(address, node.chain.bank.get(address))
    if account is None:
        return None
    return account_json(account, wanted.get("encoding", "base64"), None, node.chain.decimals)


def _outcome(err: Any, run: Run | None, *, inner: bool = False) -> dict[str, Any]:
    ran = run.meta if run else None
    return {
        "accounts": None,
        "err": err,
        "innerInstructions": meta.inner_instructions(ran) if ran and inner else None,
        "logs": ran.logs() if ran else [],
        "replacementBlockhash": None,
        "returnData": meta.return_data(ran) if ran else None,
        "unitsConsumed": ran.compute_units_consumed() if ran else 0,
    }


def request_airdrop(node: Node, address: Pubkey, lamports: int, _config: dict[str, Any]) -> str:
    """Send lamports from the faucet and return the signature of the transfer."""
    return node.airdrop(address, lamports)


METHODS = {
    "sendTransaction": Method(send_transaction, (params.string, _send_config), 1),
    "simulateTransaction": Method(simulate_transaction, (params.string, _simulate_config), 1),
    "requestAirdrop": Method(request_airdrop, (params.pubkey, params.u64, _airdrop_config), 2),
}
