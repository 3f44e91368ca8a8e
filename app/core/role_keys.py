"""Loads the keys of the roles from the data folder, or from the files and tokens that the settings name."""

from collections.abc import Mapping
from pathlib import Path

from app.core.hardware_tokens import HardwareTokens
from app.core.pkcs11_uri import SCHEME
from app.core.settings import Settings
from app.core.signers import KeyFileError, Signer, Signers, create_key, read_key


def load_or_create(folder: Path, settings: Settings, *, create: bool) -> Signers:
    """Return the signers for the keys in ``folder`` and the keys named by the settings.

    With ``create``, missing key files are created, as for a new data folder. Without it, a missing key of the authority
    or arbiter is accepted: it was taken offline on purpose. Raises KeyFileError if a key cannot be used, or if the key
    of the fee payer, the key of the operator or a key named by a setting is missing.
    """
    tokens = HardwareTokens(settings.pkcs11_timeout)
    named: Mapping[str, str | None] = {
        "fee_payer": settings.fee_payer_key,
        "operator": settings.operator_key,
        "authority": settings.authority_key,
        "arbiter": settings.arbiter_key,
    }

    def key(role: str) -> Signer:
        given = named[role]
        if given is None:
            path = _file(folder, role)
            return create_key(path) if create and not path.exists() else read_key(path)
        setting = f"AGENT_VAULT_{role.upper()}_KEY"
        if given.startswith(SCHEME):
            return tokens.open(given, name=setting)
        try:
            return read_key(Path(given))
        except KeyFileError as error:
            raise KeyFileError(f"{setting}: {error}") from None

    def optional(role: str) -> Signer | None:
        return key(role) if create or named[role] is not None or _file(folder, role).exists() else None

    return Signers(
        fee_payer=key("fee_payer"),
        operator=key("operator"),
        authority=optional("authority"),
        arbiter=optional("arbiter"),
    )


def _file(folder: Path, role: str) -> Path:
    return folder / f"{role.replace('_', '-')}.json"
