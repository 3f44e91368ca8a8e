"""The terms of a policy: its rules and its allowlist, and the changes that a request makes to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solders.pubkey import Pubkey

from app.chain.addresses import parse_address
from app.chain.rules import Rules, category_bits
from app.core.errors import BusinessError
from app.policies.models import RuleFields
from app.recipients.service import allowlist_entry
from app.store.policies import PolicyRecord, domains_of, put_allowlist
from app.submission.chain_state import known_account, unverified_recipients
from app.submission.context import Service

_PLAIN = (
    *("max_per_tx", "max_per_day", "max_per_month", "velocity_cap", "require_co_sign", "expiry"),
    *("max_open_escrows", "allow_allowances", "new_recipient_cap"),
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Rules, and the allowlist's entries: a mapping from on-chain form to displayed form, sorted by on-chain form."""

    rules: Rules
    entries: dict[bytes, str]


NO_TERMS = Terms(Rules(), {})


async def terms_of(service: Service, policy: PolicyRecord) -> Terms:
    """Return a policy's terms, with the on-chain entries of its allowlist."""
    if policy.allowlist is None:
        return Terms(policy.rules, {})
    entries: list[bytes] = (await known_account(service, policy.allowlist))["entries"]
    known = await _entries(service, policy.org, policy.allowed_recipients)
    if not known:
        known = await service.db.read(lambda conn: domains_of(conn, entries))
    # An unknown entry may be the hash of a domain. It is copied unchanged and shown as an address.
    return Terms(policy.rules, {raw: known.get(raw) or str(Pubkey.from_bytes(raw)) for raw in entries})


async def with_recipients(service: Service, policy: PolicyRecord) -> PolicyRecord:
    """Return the policy with its allowed recipients.

    A list written without the service is read from the chain once and then stored.
    """
    if policy.allowlist is None or policy.allowed_recipients:
        return policy
    allowlist, texts = policy.allowlist, list((await terms_of(service, policy)).entries.values())
    await service.db.write(lambda conn: put_allowlist(conn, allowlist, policy.policy_id, texts))
    return replace(policy, allowed_recipients=texts)


async def apply_changes(service: Service, org: str, before: Terms, body: RuleFields) -> Terms:
    """Return the terms after setting the fields in the body.

    Raises ``invalid_recipient`` for a malformed allowlist entry.
    """
    given = body.model_fields_set
    rules = replace(before.rules, **{name: getattr(body, name) for name in _PLAIN if name in given})
    if "blocked_categories" in given:
        rules = replace(rules, blocked_categories=category_bits(body.blocked_categories))
    entries = before.entries
    if "allowed_recipients" in given:
        entries = dict(sorted((await _entries(service, org, body.allowed_recipients)).items()))
        rules = replace(rules, restricted=bool(entries))
    return Terms(rules, entries)


async def unverified_entries(service: Service, before: Terms, after: Terms) -> list[str]:
    """Return a warning for each address that is new on the allowlist and is an unverified recipient."""
    added = {raw: text for raw, text in after.entries.items() if raw not in before.entries}
    addresses = [Pubkey.from_bytes(raw) for raw, text in added.items() if parse_address(text) is not None]
    return list((await unverified_recipients(service, addresses)).values())


async def require_owners(service: Service, before: Terms, after: Terms, body: RuleFields) -> None:
    """Raise ``recipient_unverified`` for a new allowlist address without a known owner, unless the body permits it."""
    if not body.allow_unverified_recipient and (warnings := await unverified_entries(service, before, after)):
        raise BusinessError("recipient_unverified", f"allowedRecipients: {warnings[0]}")


async def _entries(service: Service, org: str, texts: Sequence[str]) -> dict[bytes, str]:
    entries = {}
    for index, text in enumerate(texts):
        shown, raw = await allowlist_entry(service, org, text, f"allowedRecipients.{index}")
        entries[raw] = shown
    return entries
