"""Shows the outcome of a transaction in the form of the RPC's `meta` object."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

from solders.account import Account
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction_metadata import TransactionMetadata

from app.localnet import tokens
from app.localnet.bank import Run
from app.localnet.encoding import instruction_json
from app.localnet.transactions import cost_units


def transaction_meta(
    message: Message | MessageV0,
    run: Run,
    before: Sequence[Account | None],
    decimals_of: Callable[[Pubkey], int | None],
) -> dict[str, Any]:
    """Return the `meta` object of the executed transaction with this message.

    `before` holds the accounts of `run.keys` before the transaction. `decimals_of` returns the decimals of a mint.
    """
    after = [run.after.get(key, old) for key, old in zip(run.keys, before, strict=True)]
    tokens_before = [_token_balance(index, account, decimals_of) for index, account in enumerate(before)]
    tokens_after = [
        known if account is old else _token_balance(index, account, decimals_of)
        for index, (account, old, known) in enumerate(zip(after, before, tokens_before, strict=True))
    ]
    ran = run.meta
    consumed = ran.compute_units_consumed() if ran else 0
    meta = {
        "err": run.err,
        "status": {"Ok": None} if run.err is None else {"Err": run.err},
        "fee": run.fee,
        "preBalances": [account.lamports if account else 0 for account in before],
        "postBalances": [account.lamports if account else 0 for account in after],
        "innerInstructions": inner_instructions(ran) if ran else [],
        "logMessages": ran.logs() if ran else [],
        "preTokenBalances": [balance for balance in tokens_before if balance],
        "postTokenBalances": [balance for balance in tokens_after if balance],
        "rewards": [],
        "loadedAddresses": {
            "writable": [str(key) for key in run.loaded.writable],
            "readonly": [str(key) for key in run.loaded.readonly],
        },
        "computeUnitsConsumed": consumed,
        "costUnits": cost_units(message, before, len(run.loaded.writable), consumed),
    }
    if ran and (returned := return_data(ran)):
        meta["returnData"] = returned
    return meta


def inner_instructions(meta: TransactionMetadata) -> list[dict[str, Any]]:
    """Return the instructions that programs called, grouped by the index of the calling top-level instruction."""
    return [
        {
            "index": index,
            "instructions": [
                instruction_json(inner.instruction(), inner.stack_height())  # type: ignore[attr-defined] # missing in solders' stubs
                for inner in group
            ],
        }
        for index, group in enumerate(meta.inner_instructions())
        if group
    ]


def return_data(meta: TransactionMetadata) -> dict[str, Any] | None:
    """Return the data that the last program set with `set_return_data`, or None if there is none."""
    returned = meta.return_data()  # type: ignore[attr-defined] # another name in solders' stubs
    data = bytes(returned.data)
    if not data:
        return None
    return {"programId": str(returned.program_id), "data": [base64.b64encode(data).decode(), "base64"]}


def _token_balance(
    index: int, account: Account | None, decimals_of: Callable[[Pubkey], int | None]
) -> dict[str, Any] | None:
    token = tokens.read_account(account) if account else None
    decimals = decimals_of(token.mint) if token else None
    if account is None or token is None or decimals is None:
        return None
    return {
        "accountIndex": index,
        "mint": str(token.mint),
        "owner": str(token.owner),
        "programId": str(account.owner),
        "uiTokenAmount": tokens.ui_amount(token.amount, decimals),
    }
