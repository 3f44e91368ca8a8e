"""When a transaction that is absent from the chain can no longer land."""

from app.chain.client import ChainClient
from app.chain.nonces import NonceAccount
from app.store.attempts import Attempt

#: Blocks after the last valid one after which an absent transaction counts as expired.
_MARGIN = 30


async def over_since(chain: ChainClient, attempt: Attempt) -> int | None:
    """Return a finalized slot up to which a transaction has landed or never can; None while it still can."""
    if attempt.nonce_account is not None:
        account = await chain.account(attempt.nonce_account, "finalized")
        found = NonceAccount.of(account)
        return account.slot if account and found and str(found.nonce) != attempt.nonce else None
    block, last_height = await chain.last_final_block(), attempt.last_valid_block_height
    return block.slot if last_height is not None and block.height > last_height + _MARGIN else None
