"""Token accounts for recipients that have none. The service pays for them, up to a daily number per wallet."""

import json

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.addresses import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from app.core.errors import RequestError
from app.core.timestamps import now_ms
from app.store.values import get_value, put_value
from app.submission.context import Service

_DAY_MS = 24 * 3600 * 1000
#: Programs that own token accounts, mints, multisigs, programs and sysvars. No token account is opened for these.
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
    sysvar), and if the wallet has reached its limit for 24 hours.
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
    opened = await service.db.read(lambda conn: _opened(conn, wallet_id))
    if len(opened) >= service.settings.token_accounts_per_day:
        raise RequestError(
            "invalid_recipient",
            "The recipient has no USDC account, and the wallet has reached its limit of accounts opened in 24 hours.",
        )
    return True


def count_opening(conn: Connection, wallet_id: str) -> None:
    """Count an account as opened, even if its attempt fails later.

    Call it in the database transaction that stores the attempt.
    """
    put_value(conn, _name(wallet_id), json.dumps([*_opened(conn, wallet_id), now_ms()]))


def _opened(conn: Connection, wallet_id: str) -> list[int]:
    times: list[int] = json.loads(get_value(conn, _name(wallet_id)) or "[]")
    return [time for time in times if time > now_ms() - _DAY_MS]


def _name(wallet_id: str) -> str:
    return f"token_accounts_opened:{wallet_id}"
