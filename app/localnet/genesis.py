"""The first state of a chain and its keys: a faucet with lamports and the authority over a USDC mint."""

import json
import os
from pathlib import Path
from typing import IO, Any

from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core import file_lock as locks
from app.localnet import tokens
from app.localnet.storage import AccountRow, Storage

USDC_MINT = Pubkey.from_string("EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v")
"""The address of USDC on mainnet; here a mint under the faucet's authority stands there."""

USDC_DECIMALS = 6

_FAUCET_LAMPORTS = 500_000_000 * 10**9
_MINT_LAMPORTS = 1_461_600  # rent-exempt minimum of 82 bytes


class DataDirInUseError(RuntimeError):
    """Another process runs a chain in this directory."""


def lock(data_dir: Path) -> IO[str]:
    """Create the directory and keep it for this process until the returned file is closed.

    Raises DataDirInUseError: another process has it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    taken = locks.take(data_dir / "localnet.lock")
    if taken is None:
        raise DataDirInUseError(f"another process runs a chain in {data_dir}")
    return taken


def faucet_key(data_dir: Path | None, *, create: bool) -> Keypair:
    """Return the faucet's key from `faucet.json`, in the format of the Solana command line, mode 600.

    `create` makes one when there is none. Raises FileNotFoundError: none is there and none is to be made.
    """
    if data_dir is None:
        return Keypair()
    path = data_dir / "faucet.json"
    if not create or path.exists():
        return Keypair.from_json(path.read_text())
    keypair = Keypair()
    # Written aside and renamed, so that a crash leaves a whole key or none.
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(list(bytes(keypair))))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    return keypair


def write(storage: Storage, faucet: Pubkey, time: int) -> dict[str, Any]:
    """Write the first state of a chain that begins at the Unix second `time`, and return its settings."""
    state = {"genesis_hash": os.urandom(Hash.LENGTH), "genesis_time": time, "last_time": float(time)}
    mint = Account(_MINT_LAMPORTS, tokens.mint_data(faucet, USDC_DECIMALS), tokens.TOKEN_PROGRAM)
    accounts = [
        AccountRow(faucet, Account(_FAUCET_LAMPORTS, b"", Pubkey.default()), None),
        AccountRow(USDC_MINT, mint, None),
    ]
    storage.write_genesis(state, accounts)
    return state
