"""The first state of a chain: a USDC mint, and a faucet that has lamports and is the mint's authority."""

import json
import os
from pathlib import Path
from typing import IO, Any

from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.state import Mint

from app.core import file_lock as locks
from app.core.signers import KeyFileError
from app.localnet.storage import Storage
from app.localnet.tokens import TOKEN_PROGRAM

USDC_MINT = Pubkey.from_string("EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v")
"""The address of USDC on mainnet. On this chain, it holds a mint under the faucet's authority."""

USDC_DECIMALS = 6

_FAUCET_LAMPORTS = 500_000_000 * 10**9
_MINT_LAMPORTS = 1_461_600  # rent-exempt minimum of 82 bytes


class DataDirInUseError(RuntimeError):
    """Another process is running a chain in this directory."""


def lock(data_dir: Path) -> IO[str]:
    """Create the directory and lock it for this process until the returned file is closed.

    Raises DataDirInUseError if another process holds the lock.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    taken = locks.take(data_dir / "localnet.lock")
    if taken is None:
        raise DataDirInUseError(f"another process is running a chain in {data_dir}")
    return taken


def faucet_key(data_dir: Path | None, *, create: bool) -> Keypair:
    """Return the faucet's key from `faucet.json`, a keypair file in the Solana CLI's format with mode 600.

    Without a directory, return a new key. If the file is missing, a new key is written to it with `create`; without
    `create`, KeyFileError is raised.
    """
    if data_dir is None:
        return Keypair()
    path = data_dir / "faucet.json"
    if not create and not path.exists():
        raise KeyFileError(f"{path} is missing: restore this chain's key from the keys of a backup")
    if path.exists():
        return Keypair.from_json(path.read_text())
    keypair = Keypair()
    # Write under another name first, so that a crash leaves a complete key file or none.
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(list(bytes(keypair))))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    return keypair


def write(storage: Storage, faucet: Pubkey, time: int) -> dict[str, Any]:
    """Write the first state of a chain that starts at the Unix second `time`. Return its settings."""
    state = {"genesis_hash": os.urandom(Hash.LENGTH), "genesis_time": time, "last_time": float(time)}
    mint = bytes(Mint(faucet, supply=0, decimals=USDC_DECIMALS, is_initialized=True))
    accounts = [
        (faucet, Account(_FAUCET_LAMPORTS, b"", Pubkey.default())),
        (USDC_MINT, Account(_MINT_LAMPORTS, mint, TOKEN_PROGRAM)),
    ]
    storage.stage(state, accounts)
    storage.commit()
    return state
