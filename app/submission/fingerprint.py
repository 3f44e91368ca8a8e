"""What a request under an idempotency key is recognised by."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a request by organisation, scope and key, and holds the properties that its repetitions share.

    ``sealed_for`` is the digest of the API key under which a secret answer is sealed. ``scope`` is an agent's wallet,
    a viewer's API key, or empty for operators and admins, who share their keys.
    """

    org: str
    key: str
    method: str
    path: str
    body_hash: str
    sealed_for: str | None = None
    scope: str = ""

    @property
    def record(self) -> str:
        """Name of the record, for which its answer is sealed."""
        return f"{self.org} {self.key}"


def body_hash(body: dict[str, Any], bound_to: str | None = None) -> str:
    """Return the digest of a parsed body, in which amounts and times are already normalised.

    It includes ``bound_to``, the wallet that the API key is bound to, so that no other wallet's agent can get the
    answer.
    """
    bound = {} if bound_to is None else {"": bound_to}
    return hashlib.sha256(json.dumps(body | bound, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
