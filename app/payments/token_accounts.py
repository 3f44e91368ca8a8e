"""Token accounts for recipients that have none. The service pays for them, up to a daily number per wallet."""

from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from app.core.errors import RequestError
from app.core.timestamps import DAY
from app.store.fee_payer_use import use_of
from app.submission.context import Service

#: The owners of token accounts, mints, multisigs, programs and sysvars. Accounts of these owners get no token account.
_NOT_OWNERS = frozenset(
    {
        TOKEN_PROGRAM,
        TOKEN_2022_PROGRAM,
        Pubkey.from_string("NativeLoader1111111111111111111111111111111"),
        Pubkey.from_string("BPFLoader2111111111111111111111111111111111"),
        Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111"),
        Pubkey.from_string("LoaderV411111111111111111111111111111111111"),
        Pubkey.from_string("Sysvar1111111111111111111111111111111111111"),
    }
)


async def lacks_token_account(service: Service, wallet_id: str, owner: Pubkey) -> bool:
    """Return True if ``owner`` has no token account, so that the service must open one.

    Raises ``invalid_recipient`` for an address that gets none (a token account, a mint, a multisig, a program, a
    sysvar), and if the wallet has reached its daily limit.
    """
    tokens, account = await service.chain.accounts([service.addresses.token_account(owner), owner])
    if tokens is not None:
        return False
    if account is not None and account.owner in _NOT_OWNERS:
        raise RequestError(
            "invalid_recipient",
            "The address is a token account, a mint, a multisig, a program or a sysvar, and the service opens no USDC "
            "account for it. Pay the address of an owner.",
        )
    day = service.clock.seen_ms() // DAY
    _, opened = await service.db.read(lambda conn: use_of(conn, wallet_id, day))
    if opened >= service.settings.token_accounts_per_day:
        raise RequestError(
            "invalid_recipient",
            "The recipient has no USDC account, and the wallet has reached its daily limit on opening accounts.",
        )
    return True
