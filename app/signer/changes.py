"""Shows what the instructions of a transaction change: each field, from its old value to the new one."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from solders.pubkey import Pubkey
from solders.token.state import TokenAccount

from app.chain.instructions import UNLIMITED
from app.chain.rules import CATEGORIES, BudgetLimits, Rules
from app.core.money import format_usdc
from app.projection.differences import shown, shown_limits
from idl.codec import Call, Codec, CodecError

_FROZEN = ("no", "by hand", "because its policy expired")
#: What each instruction does, in words.
_TITLES: Mapping[str, str] = {
    "create_policy": "Create a policy",
    "update_policy": "Change a policy",
    "close_policy": "Delete a policy",
    "create_budget": "Create a budget",
    "update_budget": "Change a budget",
    "close_budget": "Delete a budget",
    "set_wallet_budget": "Put a wallet into a budget, or take it out",
    "write_allowlist": "Write a policy's next allowlist",
    "close_allowlist": "Discard a policy's next allowlist",
    "freeze_wallet": "Freeze or unfreeze a wallet",
    "update_wallet": "Change a wallet",
    "register_recipient": "Register a recipient",
    "update_org": "Change the organisation",
    "accept_authority": "Take over as the organisation's authority",
    "withdraw_reserve": "Withdraw from the reserve",
}
_NOBODY = Pubkey.default()


@dataclass(frozen=True, slots=True)
class Known:
    """Accounts as they are now, by address: read from a node, or as whoever made the transaction says."""

    accounts: Mapping[Pubkey, bytes]
    codec: Codec

    def read(self, address: Pubkey | None, kind: str) -> dict[str, Any] | None:
        """Return the fields of an account of this kind; None if it is not known."""
        data = None if address is None else self.accounts.get(address)
        try:
            found = None if data is None else self.codec.decode_account(data)
        except CodecError:
            return None
        return found.data if found is not None and found.name == kind else None

    def owner_of_tokens(self, address: Pubkey | None) -> Pubkey | None:
        """Return the owner of a token account; None if it is not known."""
        data = None if address is None else self.accounts.get(address)
        try:
            return None if data is None else TokenAccount.from_bytes(data).owner
        except ValueError:
            return None


def lines(calls: list[Call], known: Known) -> Iterator[str]:
    """Yield what a transaction changes, in words."""
    written = [entry for call in calls if call.name == "write_allowlist" for entry in call.args["entries"]]
    for call in calls:
        yield f"{_TITLES.get(call.name, 'Instruction')} ({call.name})"
        yield f"  organisation: {call.accounts.get('org')}"
        describe = _DESCRIPTIONS.get(call.name)
        described = None if describe is None else describe(call, known, written)
        yield from (f"  {line}" for line in (_plain(call) if described is None else described))
    if not calls:
        yield "Advance the nonce and nothing else: no other transaction on it can land"


def _plain(call: Call) -> Iterator[str]:
    """Yield arguments and accounts as they are."""
    for name, value in call.args.items():
        yield f"{name}: {_value(value)}"
    for name, address in call.accounts.items():
        if name not in {"org", "event_authority", "program", "system_program"}:
            yield f"{name}: {address or 'none'}"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(one)}" for name, one in value.items())
    return "none" if value is None else str(value)


def _arrow(name: str, old: str | None, new: str) -> str:
    return f"{name}: {'unknown' if old is None else old} → {new}"


def _shown(rules: Rules) -> dict[str, str]:
    """Return every rule but the allowlist in words."""
    found = shown(rules, ())
    del found["allowed_recipients"]
    found["recipients"] = "only those of its allowlist" if rules.restricted else "any"
    return {
        name: ", ".join(value) or "none" if isinstance(value, list) else _value(value) for name, value in found.items()
    }


def _entries(entries: list[bytes]) -> list[str]:
    """Return an allowlist's entries; a domain's is its hash, which nothing here can read."""
    return [str(Pubkey(entry)) for entry in entries]


def _create_policy(call: Call, _known: Known, _written: list[bytes]) -> Iterator[str]:
    yield f"policy: {call.accounts['policy']} (new)"
    yield from (f"{name}: {value}" for name, value in _shown(Rules(**call.args["rules"])).items())


def _update_policy(call: Call, known: Known, written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["policy"], "Policy")
    new = _shown(Rules(**call.args["rules"]))
    old = None if account is None else _shown(Rules.from_account(account))
    yield f"policy: {call.accounts['policy']}"
    if account is not None and account["version"] != call.args["expected_version"]:
        yield f"version: the change is for {call.args['expected_version']}, the policy is at {account['version']}"
    for name, value in new.items():
        if old is None or old[name] != value:
            yield _arrow(name, None if old is None else old[name], value)
        else:
            yield f"{name}: {value} (unchanged)"
    if call.accounts["new_allowlist"] is not None:
        yield from _allowlists(call, known, account, written)


def _allowlists(call: Call, known: Known, account: dict[str, Any] | None, written: list[bytes]) -> Iterator[str]:
    replaced = None if account is None else known.read(account["allowlist"], "Allowlist")
    before = set() if replaced is None else set(_entries(replaced["entries"]))
    draft = known.read(call.accounts["new_allowlist"], "Allowlist")
    raw = written if written or draft is None else draft["entries"]
    digest = call.args["digest"] or {"count": 0, "hash": b""}
    # The program puts no other entries in force than those of the digest, whatever accounts came with the transaction.
    if len(raw) != digest["count"] or hashlib.sha256(b"".join(raw)).digest() != digest["hash"]:
        yield f"allowed: {digest['count']} unknown entries with the SHA-256 {digest['hash'].hex()}"
        return
    entries = _entries(raw)
    for entry in entries:
        yield f"allowed (an address, or a domain's hash): {entry}{' (as before)' if entry in before else ''}"
    yield from (f"no longer allowed: {entry}" for entry in sorted(before - set(entries)))
    if account is not None and account["allowlist"] != _NOBODY and replaced is None:
        yield f"no longer allowed: what else the list {account['allowlist']} has, which is unknown"


def _close_policy(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["policy"], "Policy")
    yield f"policy: {call.accounts['policy']}"
    if account is not None:
        yield from (_arrow(name, value, "gone") for name, value in _shown(Rules.from_account(account)).items())


def _write_allowlist(call: Call, _known: Known, _written: list[bytes]) -> Iterator[str]:
    yield f"policy: {call.accounts['policy']}"
    yield f"allowlist: {call.accounts['allowlist']}, {len(call.args['entries'])} entries from {call.args['offset']}"
    yield from (f"entry (an address, or a domain's hash): {entry}" for entry in _entries(call.args["entries"]))


def _close_allowlist(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["allowlist"], "Allowlist")
    count = "unknown" if account is None else str(len(account["entries"]))
    yield f"policy: {call.accounts['policy']}"
    yield f"allowlist: {call.accounts['allowlist']}, {count} entries, which were never in force"


def _freeze_wallet(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["vault"], "Vault")
    new = {"Freeze": _FROZEN[1], "Unfreeze": _FROZEN[0], "Expire": _FROZEN[2]}[call.args["action"]]
    yield f"wallet: {call.accounts['vault']}"
    yield _arrow("frozen", None if account is None else _FROZEN[account["frozen"]], new)


def _update_wallet(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["vault"], "Vault") or {}
    yield f"wallet: {call.accounts['vault']}"
    if call.accounts["new_policy"] is not None:
        old = account.get("policy", call.accounts["policy"])
        yield _arrow("policy", None if old is None else str(old), str(call.accounts["new_policy"]))
    if call.args["session"] is not None:
        session = account.get("session_authority")
        yield _arrow("session", None if session is None else str(session), _value(call.args["session"]))


def _register_recipient(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["recipient"], "Recipient")
    digest, category = call.args["domain_digest"], call.args["category"]
    yield f"address: {call.args['address']}"
    new = CATEGORIES[category] if category < len(CATEGORIES) else str(category)
    yield _arrow("category", None if account is None else CATEGORIES[account["category"]], new)
    had = None if account is None else (account["domain_hash"].hex() if account["has_domain"] else "none")
    yield _arrow("domain (its hash)", had, "none" if digest is None else f"that of the digest {digest.hex()}")


def _update_org(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["org"], "Org")
    for name, value in call.args["changes"].items():
        if value is not None:
            old = None if account is None else _org_value(name, account[name])
            yield _arrow(name, old, _org_value(name, value))


def _org_value(name: str, value: Any) -> str:
    if name == "operator_daily_limit":
        return "unlimited" if value == UNLIMITED else f"{format_usdc(value)} USDC"
    if name == "attestation_delay":
        return f"{value} s"
    if name in {"paused", "authority_attaches"}:
        return "yes" if value else "no"
    return "nobody" if value == _NOBODY else str(value)


def _accept_authority(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["org"], "Org")
    yield _arrow(
        "authority", None if account is None else str(account["authority"]), str(call.accounts["new_authority"])
    )


def _withdraw_reserve(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    amount, place = call.args["amount"], call.accounts["destination"]
    owner = known.owner_of_tokens(place)
    yield f"amount: {'everything' if amount is None else f'{format_usdc(amount)} USDC'}"
    yield f"from the reserve: {call.accounts['reserve_tokens']}"
    yield f"to the token account: {place}, owned by {owner or 'unknown'}"


def _limits(account: dict[str, Any] | None) -> dict[str, str]:
    limits = {} if account is None else shown_limits(BudgetLimits.from_account(account))
    return {name: _value(value) for name, value in limits.items()}


def _create_budget(call: Call, _known: Known, _written: list[bytes]) -> Iterator[str]:
    yield f"budget: {call.accounts['budget']} (new)"
    limits = shown_limits(BudgetLimits(**call.args["limits"]))
    yield from (f"{name}: {_value(value)}" for name, value in limits.items())


def _update_budget(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    account = known.read(call.accounts["budget"], "Budget")
    old = _limits(account)
    yield f"budget: {call.accounts['budget']}"
    if account is not None and account["version"] != call.args["expected_version"]:
        yield f"version: the change is for {call.args['expected_version']}, the budget is at {account['version']}"
    for name, value in shown_limits(BudgetLimits(**call.args["limits"])).items():
        new = _value(value)
        yield f"{name}: {new} (unchanged)" if old.get(name) == new else _arrow(name, old.get(name), new)


def _close_budget(call: Call, known: Known, _written: list[bytes]) -> Iterator[str]:
    yield f"budget: {call.accounts['budget']}"
    old = _limits(known.read(call.accounts["budget"], "Budget"))
    yield from (_arrow(name, value, "gone") for name, value in old.items())


def _set_wallet_budget(call: Call, _known: Known, _written: list[bytes]) -> Iterator[str]:
    yield f"wallet: {call.accounts['vault']}"
    # The program refuses any other budget than the wallet's own as the one that it leaves.
    yield _arrow("budget", str(call.accounts["budget"] or "none"), str(call.accounts["new_budget"] or "none"))


_DESCRIPTIONS: Mapping[str, Callable[[Call, Known, list[bytes]], Iterator[str]]] = {
    "create_policy": _create_policy,
    "update_policy": _update_policy,
    "close_policy": _close_policy,
    "create_budget": _create_budget,
    "update_budget": _update_budget,
    "close_budget": _close_budget,
    "set_wallet_budget": _set_wallet_budget,
    "write_allowlist": _write_allowlist,
    "close_allowlist": _close_allowlist,
    "freeze_wallet": _freeze_wallet,
    "update_wallet": _update_wallet,
    "register_recipient": _register_recipient,
    "update_org": _update_org,
    "accept_authority": _accept_authority,
    "withdraw_reserve": _withdraw_reserve,
}
