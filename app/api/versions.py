"""Versions of objects that several people may change concurrently: `ETag` in responses, `If-Match` in requests."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from app.core.errors import ConflictError, RequestError
from app.store.policies import DETAILS

_NAME_DIGITS = 8


def entity_tag(version: int, name: str, *details: object) -> str:
    """Return an entity tag: the version, and a digest of the name and, for a policy, its other off-chain details.

    The digest covers the details because a changed detail does not change the version.
    """
    texts = [
        ["", *one] if isinstance(one, list) else ["", str(one)]
        for one in details
        if one is not None and one is not False
    ]
    content = "\n".join([name, *chain.from_iterable(texts)])
    return f"{version}-{hashlib.sha256(content.encode()).hexdigest()[:_NAME_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Precondition:
    """The entity tags that the header If-Match accepts. None accepts any version."""

    tags: Sequence[str] | None

    @classmethod
    def of(cls, header: str | None) -> "Precondition":
        """Parse the header: `*`, or quoted tags. A tag may consist of the version alone.

        Without a header, any version is accepted. Raises ``invalid_request`` for any other header.
        """
        if header is None or header.strip() == "*":
            return cls(None)
        tags = [one.strip() for one in header.split(",")]
        if not all(len(one) > 2 and one[0] == one[-1] == '"' and '"' not in one[1:-1] for one in tags):
            raise RequestError("invalid_request", 'If-Match: must be the ETag of a response, such as "3-5d41402a".')
        return cls([one[1:-1] for one in tags])

    def check(self, version: int, name: str, *details: object) -> None:
        """Raise ``version_conflict`` unless the object's version alone, or its entity tag, is accepted."""
        accepted = {str(version), entity_tag(version, name, *details)}
        if self.tags is not None and accepted.isdisjoint(self.tags):
            raise ConflictError("version_conflict", fields={"version": version})


def tag_header(content: bytes) -> dict[str, str]:
    """Return the header `ETag` of a response, unless the response has no version."""
    shown = json.loads(content)
    # A transaction that waits for a signature has no version yet.
    if "version" not in shown:
        return {}
    return {"etag": f'"{entity_tag(shown["version"], *(shown.get(name) for name in DETAILS))}"'}
