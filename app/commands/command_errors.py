"""The errors that users of the command line can cause, which are told in one line."""

from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError
from app.core.paths import ConfigurationError
from app.core.signers import KeyFileError
from app.localnet import DataDirInUseError

EXPECTED = (
    ConfigurationError,
    KeyFileError,
    DataDirInUseError,
    OSError,
    ApiError,
    ChainUnavailable,
    RpcError,
)
"""For `except`."""
