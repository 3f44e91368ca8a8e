"""What a policy says: its name, its rules and its allowlist, and how a request changes that."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from solders.pubkey import Pubkey

from app.chain.rules import Rules, category_bits
from app.core.errors import ConflictError, RequestError
from app.policies.models import RuleFields
from app.recipients.service import allowlist_entry
from app.store.policies import PolicyRecord, domains_of, put_allowlist
from app.submission.context import Service

_PLAIN = ("max_per_tx", "max_per_day", "max_per_month", "velocity_cap", "require_co_sign", "expiry")
_NAME_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Terms:
    """Rules, and the entries of the allowlist: chain form to shown form, ascending by the chain form."""

    rules: Rules
    entries: dict[bytes, str]


NO_TERMS = Terms(Rules(), {})


async def terms_of(service: Service, policy: PolicyRecord) -> Terms:
    """Return what a policy says, its allowlist as the chain has it."""
    if policy.allowlist is None:
        return Terms(policy.rules, {})
    account = await service.chain.account(Pubkey.from_string(policy.allowlist))
    if account is None:
        raise changed_meanwhile()
    entries: list[bytes] = service.codec.decode_account(account.data).data["entries"]
    known = await _entries(service, policy.org, policy.allowed_recipients)
    if not known:
        known = await service.db.read(lambda conn: domains_of(conn, entries))
    # What is not known may be a domain's hash; it is copied as it is, and shown as an address would be.
    return Terms(policy.rules, {raw: known.get(raw) or str(Pubkey.from_bytes(raw)) for raw in entries})


async def named(service: Service, policy: PolicyRecord) -> PolicyRecord:
    """Return the policy with the texts of its allowlist, found out once when the list was written past this service."""
    if policy.allowlist is None or policy.allowed_recipients:
        return policy
    allowlist, texts = policy.allowlist, list((await terms_of(service, policy)).entries.values())
    await service.db.write(lambda conn: put_allowlist(conn, allowlist, policy.policy_id, texts))
    return replace(policy, allowed_recipients=texts)


async def changed(service: Service, org: str, before: Terms, body: RuleFields) -> Terms:
    """Return what is said once the fields in the body are set. Raises ``invalid_recipient``."""
    given = body.model_fields_set
    rules = replace(before.rules, **{name: getattr(body, name) for name in _PLAIN if name in given})
    if "blocked_categories" in given:
        rules = replace(rules, blocked_categories=category_bits(body.blocked_categories))
    entries = before.entries
    if "allowed_recipients" in given:
        entries = dict(sorted((await _entries(service, org, body.allowed_recipients)).items()))
        rules = replace(rules, restricted=bool(entries))
    return Terms(rules, entries)


def tag(version: int, name: str) -> str:
    """Return the entity tag of a policy: the chain's version, and a digest of the name that the chain does not know."""
    return f"{version}-{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Expected:
    """The tags that the header If-Match allows a policy to have; without the header any."""

    tags: Sequence[str] | None

    @classmethod
    def of(cls, header: str | None) -> "Expected":
        """Read the header: `*`, or quoted tags, of which each may be the version alone. Raises ``invalid_request``."""
        if header is None or header.strip() == "*":
            return cls(None)
        tags = [one.strip() for one in header.split(",")]
        if not all(len(one) > 2 and one[0] == one[-1] == '"' and '"' not in one[1:-1] for one in tags):
            raise RequestError("invalid_request", 'If-Match: takes the ETag of an answer, such as "3-5d41402a".')
        return cls([one[1:-1] for one in tags])

    def check(self, policy: PolicyRecord) -> None:
        """Raise ``version_conflict`` unless the policy is as expected."""
        if self.tags is not None and not {str(policy.version), tag(policy.version, policy.name)} & set(self.tags):
            raise ConflictError("version_conflict", fields={"version": policy.version})


def changed_meanwhile() -> ConflictError:
    """Return the error for a policy that others keep changing."""
    return ConflictError("version_conflict", "The policy was changed at the same time. Repeat the request.")


async def _entries(service: Service, org: str, texts: Sequence[str]) -> dict[bytes, str]:
    entries = {}
    for index, text in enumerate(texts):
        shown, raw = await allowlist_entry(service, org, text, f"allowedRecipients.{index}")
        entries[raw] = shown
    return entries
