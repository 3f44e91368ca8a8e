"""The embedded chain: a Solana JSON-RPC node over LiteSVM with its state in SQLite."""

from app.localnet.genesis import DataDirInUseError
from app.localnet.localnet import Localnet

__all__ = ["DataDirInUseError", "Localnet"]
