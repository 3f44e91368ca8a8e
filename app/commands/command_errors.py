"""Errors that users of the command line can cause, each shown in one line."""

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
"""Expected errors, for use in `except` and `isinstance`."""


def explained(error: Exception) -> str | None:
    """Return a line that explains the error to the user, or None for an unexpected error, which needs a traceback."""
    if isinstance(error, ValidationError):
        return "; ".join(map(_fault, error.errors()))
    if isinstance(error, EXPECTED):
        return str(error)
    if is_storage_error(error):
        return f"the data cannot be read or written: {getattr(error, 'orig', None) or error}"
    return None


def _fault(found: Any) -> str:
    """Return the name of a setting and its problem, without the validation library's prefix."""
    name, reason = ".".join(map(str, found["loc"])), found["msg"].removeprefix("Value error, ")
    return f"{name}: {reason}" if name else reason
