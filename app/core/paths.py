"""Where things lie on the disk."""

from dataclasses import dataclass
from pathlib import Path


class ConfigurationError(Exception):
    """The settings do not fit together, or a file that they name is not there."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things lie in the data folder. ``keys_dir`` is the folder of the keys if it is elsewhere."""

    root: Path
    keys_dir: Path | None = None

    @property
    def database(self) -> Path:
        """The service's own state and its read models."""
        return self.root / "agent-vault.db"

    @property
    def moved(self) -> Path:
        """Names the database to which the service's state was moved; only there once it was."""
        return self.root / "moved-to"

    @property
    def events(self) -> Path:
        """The decoded events of the chain."""
        return self.root / "chain.db"

    @property
    def localnet(self) -> Path:
        """The embedded chain."""
        return self.root / "localnet"

    @property
    def serving(self) -> Path:
        """The lock of the process that serves."""
        return self.root / "serve.lock"

    @property
    def exports(self) -> Path:
        """The files of exports."""
        return self.root / "exports"

    @property
    def sidecars(self) -> Path:
        """The lock that the processes next to the service share."""
        return self.root / "sidecars.lock"

    @property
    def keys(self) -> Path:
        """The signing keys."""
        return self.keys_dir or self.root / "keys"

    @property
    def secret(self) -> Path:
        """The secret under which API keys are recognised and webhook secrets encrypted."""
        return self.keys / "service-secret"

    @property
    def admin_key(self) -> Path:
        """The admin's API key of the first start."""
        return self.root / "admin-api-key"


def program_file() -> Path:
    """Return the built program. Raises ConfigurationError when it is not there."""
    path = Path(__file__).with_name("agent_vault.so")
    if not path.is_file():
        raise ConfigurationError(f"{path} is missing; build it with programs/toolchain/build")
    return path
