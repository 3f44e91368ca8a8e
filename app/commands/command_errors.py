"""The errors that users of the command line can cause, told in one line."""

from typing import Any

from pydantic import ValidationError

from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError, is_storage_error
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


def explained(error: Exception) -> str | None:
    """Return the line that tells the user of an error; None for one that only a developer can explain."""
    if isinstance(error, ValidationError):
        return "; ".join(map(_fault, error.errors()))
    if isinstance(error, EXPECTED):
        return str(error)
    if is_storage_error(error):
        return f"the data cannot be read or written: {getattr(error, 'orig', None) or error}"
    return None


def _fault(found: Any) -> str:
    """Return what is wrong with a setting, without the words of the library that checks it."""
    name, reason = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
    return f"{name}: {reason}" if name else reason
