"""Signed download links. They need no API key.

A link works for some minutes. It ends earlier if its API key ends or its person is removed.
"""

import hashlib
import hmac
from urllib.parse import urlencode

from app.core.actors import Actor
from app.core.settings import Settings
from app.core.timestamps import now_seconds


class DownloadLinks:
    """Creates and checks links that are signed with the service's own key."""

    def __init__(self, settings: Settings, key: bytes) -> None:
        self._base_url = settings.base_url()
        self._lifetime = settings.export_link_lifetime
        self._key = key

    def make(self, export_id: str, by: Actor, *, until: int, name: str = "download") -> str:
        """Return a link for a caller, valid until the Unix second `until` at the latest.

        It leads to an export's file, or with the `name` `manifest` to the file's manifest. The signature in both links
        is the same.
        """
        expires = min(int(now_seconds()) + self._lifetime, until)
        query = urlencode({"expires": expires, "by": by, "signature": self._sign(export_id, str(by), str(expires))})
        return f"{self._base_url}/v1/transactions/exports/{export_id}/{name}?{query}"

    def is_valid(self, export_id: str, by: str, expires: str, signature: str) -> bool:
        """Return True if a link with these parts was issued by this service and has not expired."""
        # Compare the signatures as bytes, because `compare_digest` refuses texts that are not ASCII.
        genuine = hmac.compare_digest(self._sign(export_id, by, expires).encode(), signature.encode())
        return genuine and now_seconds() < int(expires)

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()
