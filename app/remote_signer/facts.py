"""Reads facts about a transaction: values in its signed bytes, and values derived from them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAMS, Addresses
from app.chain.instructions import UNLIMITED
from app.chain.rules import CATEGORIES, category_names
from app.core.money import MICRO_PER_USDC, format_usdc
from app.core.timestamps import iso
from app.remote_signer.inspection import COSTS, MEMO, OPEN_TOKENS, Inspected
from idl.codec import Call

#: The effect of each instruction, in words.
_TITLES: Mapping[str, str] = {
    "create_policy": "Create a policy",
    "update_policy": "Change a policy",
    "close_policy": "Delete a policy",
    "create_budget": "Create a budget",
    "update_budget": "Change a budget",
    "freeze_budget": "Freeze a budget",
    "unfreeze_budget": "Unfreeze a budget",
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
    OPEN_TOKENS: "Open a token account unless it already exists",
    COSTS: "Set a limit or price for the computation",
    MEMO: "Add a memo, which changes nothing",
}
_MONEY = frozenset(
    {
        *("amount", "released", "only_below", "outstanding_amount", "operator_daily_limit"),
        *("max_per_tx", "max_per_day", "max_per_month", "max_total", "require_co_sign"),
    }
)
_TIMES = frozenset({"expiry", "expires_at"})
UNPROVED = "owner not proved by these bytes alone"


def facts(found: Inspected) -> Iterator[str]:
    """Yield lines about the arguments and accounts of each instruction, and about all other signed content."""
    for step in found.steps:
        yield f"{_TITLES.get(step.name, 'Instruction')} ({step.name})"
        for name, value in step.args.items():
            yield from (f"  {path}: {shown}" for path, shown in leaves(name, value))
        if step.args.get("digest") is not None:
            known = entries_of(step, written(found)) is not None
            yield f"  the list's entries: {'written by this transaction' if known else 'not in these bytes'}"
        owners = owners_of(step, found.transaction.keys)
        for name, address in step.accounts.items():
            # The codec refuses any other event authority, so this account needs no line.
            if name != "event_authority":
                tokens = address is not None and _holds_tokens(name)
                owner = "" if not tokens else f", owned by {owners[address]}" if address in owners else f", {UNPROVED}"
                yield f"  {name}: {address or 'none'}{owner}"
    if not found.steps:
        yield "Only advance the nonce: afterwards, no other transaction with the nonce's present value can land"
    yield f"Format: {found.format}"
    yield f"Signed by {', '.join(map(str, found.transaction.signers))}"
    yield f"Fee and rent are paid by {found.transaction.signers[0]}"
    yield f"Valid while the nonce account {found.nonce_account} holds {found.transaction.blockhash},"
    yield "  or for at most two minutes if this value is a blockhash and not a nonce"
    yield f"1.00 USDC is {MICRO_PER_USDC} units of the organisation's mint, if this mint is USDC"


def unproved(found: Inspected) -> set[tuple[Pubkey, Pubkey | None, Pubkey | None]]:
    """Return the token accounts with an owner that the bytes do not prove, each with its mint and token program."""
    every = set()
    for step in found.steps:
        owners, (mint, program) = owners_of(step, found.transaction.keys), _token_of(step)
        for name, address in step.accounts.items():
            if address is not None and _holds_tokens(name) and address not in owners:
                every.add((address, mint, program))
    return every


def derives(owner: Pubkey, place: Pubkey, mint: Pubkey | None, program: Pubkey | None) -> bool:
    """Return True if `place` is the address derived from owner, mint and token program (the associated account)."""
    if mint is None or program not in TOKEN_PROGRAMS:
        return False
    return Addresses(owner, mint, program).token_account(owner) == place


def owners_of(step: Call, keys: Sequence[Pubkey]) -> dict[Pubkey | None, Pubkey]:
    """Return a step's associated token accounts with their owners, if the owner's address is in the signed bytes."""
    mint, program = _token_of(step)
    places = {address for name, address in step.accounts.items() if _holds_tokens(name)}
    return {place: key for place in places for key in keys if place is not None and derives(key, place, mint, program)}


def _token_of(step: Call) -> tuple[Pubkey | None, Pubkey | None]:
    return step.accounts.get("mint"), step.accounts.get("token_program")


def _holds_tokens(name: str) -> bool:
    return name == "destination" or name.endswith("tokens")


def written(found: Inspected) -> list[bytes]:
    """Return the allowlist entries that the transaction itself writes."""
    return [entry for step in found.steps if step.name == "write_allowlist" for entry in step.args["entries"]]


def entries_of(step: Call, entries: list[bytes]) -> list[str] | None:
    """Return entries in their displayed form if they match the digest in a step, otherwise None.

    The program puts only matching entries into force.
    """
    digest = step.args["digest"]
    if len(entries) != digest["count"] or hashlib.sha256(b"".join(entries)).digest() != digest["hash"]:
        return None
    return [_entry(entry) for entry in entries]


def _entry(entry: bytes) -> str:
    return f"{Pubkey(entry)} (an address, or a domain's hash)"


def leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each value in a tree of structs and lists with its path. Different values have different texts."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(f"{path}.{name}", one)
    elif isinstance(value, list):
        yield path, f"{len(value)} in number"
        for place, one in enumerate(value):
            yield from leaves(f"{path}[{place}]", one)
    elif value is None and path.startswith("changes."):
        yield path, "unchanged"
    else:
        yield path, _shown(path.rpartition(".")[2], value)


def _shown(name: str, value: Any) -> str:
    match value:
        case None:
            return "everything" if name == "amount" else "none"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return _entry(value) if name.startswith("entries[") else value.hex()
        case Pubkey():
            return "nobody" if value == Pubkey.default() else str(value)
        case int() if name in _MONEY:
            unlimited = name == "operator_daily_limit" and value == UNLIMITED
            return "unlimited" if unlimited else f"{format_usdc(value)} USDC"
        case int() if name in _TIMES:
            return f"{iso(value) if value >= 0 else 'before 1970'} ({value})"
        case int() if name == "blocked_categories":
            return f"{', '.join(category_names(value)) or 'none'} ({value:#x})"
        case int() if name == "category" and value < len(CATEGORIES):
            return f"{CATEGORIES[value]} ({value})"
        case _:
            return str(value)
