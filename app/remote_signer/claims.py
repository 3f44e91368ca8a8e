"""Reads the claims of a file or a node about the accounts that a transaction changes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from solders.pubkey import Pubkey
from solders.token.state import TokenAccount

from app.chain.rules import BudgetLimits, Rules
from app.remote_signer.facts import derives, entries_of, leaves, unproved, written
from app.remote_signer.inspection import Inspected
from idl.codec import Call, Codec, CodecError

_FROZEN = ("no", "by hand", "because its policy expired")
_TOKEN_ACCOUNT = 165
_MOST_LINES = 64
"""Maximum number of an allowlist's earlier entries that are shown: claims must not push facts off the screen."""


@dataclass(frozen=True, slots=True)
class ClaimedAccounts:
    """The current data of accounts by address, as a file or a node claims it."""

    accounts: Mapping[Pubkey, bytes]
    codec: Codec

    def read(self, address: Pubkey | None, kind: str) -> dict[str, Any] | None:
        """Return the fields of an account if it is known and of this kind, otherwise None."""
        data = None if address is None else self.accounts.get(address)
        try:
            found = None if data is None else self.codec.decode_account(data)
        except CodecError:
            return None
        return found.data if found is not None and found.name == kind else None

    def owner_of_tokens(self, address: Pubkey) -> Pubkey | None:
        """Return the owner of a token account of either token program, or None if it is not known."""
        data = self.accounts.get(address)
        try:
            return None if data is None else TokenAccount.from_bytes(data[:_TOKEN_ACCOUNT]).owner
        except ValueError:
            return None


def proved_claims(found: Inspected, known: ClaimedAccounts) -> Iterator[str]:
    """Yield the claims that the signed bytes prove. No source can make a false claim appear here."""
    for place, owner in _owners(found, known).items():
        yield f"{place} is owned by {owner}: it is the owner's associated token account"
    for step in found.steps:
        for entry in _list_of(step, found, known):
            yield f"allowed: {entry}"


def unproved_claims(found: Inspected, known: ClaimedAccounts) -> Iterator[str]:
    """Yield the claims that the signed bytes do not prove: the accounts' current values."""
    proved = _owners(found, known)
    for place, _, _ in unproved(found):
        if place not in proved:
            yield f"{place} is owned by {known.owner_of_tokens(place) or 'an unknown owner'}"
    for step in found.steps:
        new = dict(line for name, value in step.args.items() for line in leaves(name, value))
        for name, value in _old(step, known).items():
            for path, shown in leaves(name, value):
                yield f"{path} is now {shown}{' (unchanged)' if new.get(path) == shown else ''}"
        yield from _replaced(step, found, known)


def unproved_owners(found: Inspected, known: ClaimedAccounts) -> list[Pubkey]:
    """Return the token accounts with an owner that the signed bytes, even together with a claim, do not prove."""
    return sorted({place for place, _, _ in unproved(found)} - set(_owners(found, known)), key=str)


def _owners(found: Inspected, known: ClaimedAccounts) -> dict[Pubkey, Pubkey]:
    """Return the claimed owners of token accounts. Leaves out an owner if the account's address does not prove it."""
    claimed = [(one, known.owner_of_tokens(one[0])) for one in sorted(unproved(found), key=str)]
    return {one[0]: owner for one, owner in claimed if owner is not None and derives(owner, *one)}


def _list_of(step: Call, found: Inspected, known: ClaimedAccounts) -> list[str]:
    """Return the entries of the list that a step puts into force, unless the transaction itself writes them."""
    draft = known.read(step.accounts.get("new_allowlist"), "Allowlist")
    if step.args.get("digest") is None or draft is None or entries_of(step, written(found)) is not None:
        return []
    return entries_of(step, draft["entries"]) or []


def _replaced(step: Call, found: Inspected, known: ClaimedAccounts) -> Iterator[str]:
    """Yield lines about entries of a replaced allowlist: still allowed by its replacement, or no longer allowed."""
    policy = known.read(step.accounts.get("policy"), "Policy")
    old = None if policy is None else known.read(policy["allowlist"], "Allowlist")
    if step.name != "update_policy" or step.args["digest"] is None or old is None:
        return
    kept = set(_list_of(step, found, known) or entries_of(step, written(found)) or ())
    before = [shown for path, shown in leaves("entries", old["entries"]) if path != "entries"]
    lines = [f"{'still' if entry in kept else 'no longer'} allowed: {entry}" for entry in before]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"and {len(lines) - _MOST_LINES} more entries of the current list"


def _old(step: Call, known: ClaimedAccounts) -> dict[str, Any]:
    """Return the claimed values that a step will replace, named like the step's arguments."""

    def read(name: str, kind: str) -> dict[str, Any] | None:
        return known.read(step.accounts[name], kind)

    match step.name:
        case "update_policy" | "close_policy" if policy := read("policy", "Policy"):
            return {"version": policy["version"], "rules": asdict(Rules.from_account(policy))}
        case "update_budget" | "close_budget" if budget := read("budget", "Budget"):
            return {"version": budget["version"], "limits": asdict(BudgetLimits.from_account(budget))}
        case "freeze_budget" | "unfreeze_budget" if budget := read("budget", "Budget"):
            return {"frozen": bool(budget["frozen"])}
        case "freeze_wallet" if vault := read("vault", "Vault"):
            return {"frozen": _FROZEN[vault["frozen"]] if vault["frozen"] < len(_FROZEN) else vault["frozen"]}
        case "update_wallet" | "set_wallet_budget" if vault := read("vault", "Vault"):
            session = {"authority": vault["session_authority"], "expires_at": vault["session_expires_at"]}
            return {"policy": vault["policy"], "budget": vault["budget"], "session_change": {"session": session}}
        case "register_recipient" if recipient := read("recipient", "Recipient"):
            domain = recipient["domain_hash"] if recipient["has_domain"] else None
            return {"category": recipient["category"], "domain_hash": domain}
        case "update_org" if org := read("org", "Org"):
            given = {name: value for name, value in step.args["changes"].items() if value is not None}
            flags = {name: bool(org[name]) for name, value in given.items() if isinstance(value, bool)}
            return {"changes": {name: org[name] for name in given} | flags}
        case "accept_authority" if org := read("org", "Org"):
            return {"authority": org["authority"]}
        case "close_allowlist" if entries := read("allowlist", "Allowlist"):
            return {"entries": len(entries["entries"])}
    return {}
