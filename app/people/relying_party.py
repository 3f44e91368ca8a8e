"""The WebAuthn relying party: the host of the dashboard that people's passkeys are bound to."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from app.core.hosts import is_loopback
from app.core.paths import ConfigurationError
from app.core.settings import Settings

_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """The host that passkeys are bound to.

    - ``origin``: scheme, host and port of the dashboard; None for http on a loopback address, where any port may lead
      to the dashboard.
    - ``prefix``: the path in front of `/dashboard`, without a trailing slash.
    """

    id: str
    origin: str | None
    prefix: str

    @property
    def secure(self) -> bool:
        """True if browsers reach the dashboard by https."""
        return self.origin is not None

    def origin_at(self, host: str) -> str:
        """Return the origin of the dashboard's pages for a request with this `Host` header."""
        return self.origin or f"http://{host}"


def relying_party(settings: Settings) -> RelyingParty:
    """Return the relying party of the settings.

    Browsers offer passkeys only under https or on `localhost`, not on http://127.0.0.1. Raises ConfigurationError if
    the dashboard has an http address that is not a loopback address.
    """
    parts = urlsplit(settings.base_url())
    host = (parts.hostname or "").lower()
    if parts.scheme == "https":
        return RelyingParty(host, f"https://{parts.netloc.lower()}", parts.path)
    if is_loopback(host):
        return RelyingParty(_LOCALHOST, None, parts.path)
    raise ConfigurationError(
        f"the dashboard at http://{parts.netloc} needs https: set AGENT_VAULT_PUBLIC_URL to an https address, "
        "or listen on this machine only, with --host 127.0.0.1"
    )


def dashboard_url(settings: Settings) -> str:
    """Return the address of the dashboard. Its host is `localhost` if clients use http on a loopback address."""
    party = relying_party(settings)
    port = urlsplit(settings.base_url()).port
    place = party.origin or (f"http://{_LOCALHOST}" + (f":{port}" if port else ""))
    return f"{place}{party.prefix}/dashboard"
