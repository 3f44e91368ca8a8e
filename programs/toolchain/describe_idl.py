"""Adds documentation and derivations to an Anchor IDL.

Anchor's macros print neither documentation of arguments nor every derivation that clients need. An instruction
documents its arguments in lines of the form "- `name`: text" at the end of its own documentation.
"""

import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

ARGUMENT = re.compile(r"- `(\w+)`: (.*)")
ASSOCIATED_TOKEN_PROGRAM = bytes.fromhex("8c97258f4e2489f1bb3d1029148e0d830b5a1399daff1084048e7bd8dbe9f859")
INSTRUCTIONS_SYSVAR = "Sysvar1nstructions1111111111111111111111111"

# Fields with the same meaning in every event that does not document them itself.
FIELDS: Mapping[str, str] = {
    "org": "The organisation.",
    "vault": "The vault.",
    "policy": "The policy.",
    "budget": "The budget.",
    "escrow": "The escrow.",
    "allowance": "The allowance.",
    "approval": "The approval.",
    "allowlist": "The allowlist.",
    "previous_allowlist": "The allowlist in force before.",
    "sequence": "Number of this change: the vault's if the event names one, otherwise the organisation's.",
    "org_sequence": "Number of this change of the organisation.",
    "reserved": "Zero.",
    "signer": "The account that signed for this change.",
    "amount": "Amount in micro-USDC.",
    "released": "The receiver's share in micro-USDC.",
    "refunded": "The vault's share in micro-USDC.",
    "reference": "Reference chosen by the client.",
    "timestamp": "Unix time of the change.",
    "receiver": "The address paid on completion.",
    "recipient": "The address that is paid.",
    "delegate": "The key that signs the transfer.",
    "authority": "The organisation's authority.",
    "operator": "The organisation's operator.",
    "arbiter": "The key that decides disputes.",
    "verifier": "The key that signs completion proofs of third parties.",
    "creator": "The signer that created the organisation.",
    "mint": "The mint.",
    "reserve_tokens": "The reserve: the organisation's token account.",
    "vault_tokens": "The vault's token account.",
    "operator_daily_limit": "Maximum micro-USDC that the operator may move into vaults in any 24 hours.",
    "attestation_delay": "Seconds until a registration by the operator can permit payments.",
    "counter": "Part of the account's address: the vault's number of earlier ones.",
    "version": "Version of the account.",
    "policy_version": "Version of the policy.",
    "expires_at": "Unix time of expiry.",
    "session_expires_at": "Unix time of the session's expiry.",
    "key": "Identifies the account within the organisation.",
    "rules": "The rules.",
    "limits": "The limits.",
    "previous": "The values before the change.",
    "agent_hash": "SHA-256 of the agent's id.",
    "task_hash": "SHA-256 of the task's description.",
    "address": "The attested address.",
    "category": "Category code.",
    "limit": "The rule's limit.",
    "attempted": "The value that the payment would have reached.",
}

# Accounts whose address another account stores in a field of the same name: the sources, best first.
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "org": ("vault", "policy", "budget", "escrow", "allowance"),
    "policy": ("vault",),
    "vault": ("escrow", "allowance", "approval"),
    "receiver": ("escrow",),
}


def const(value: bytes) -> Json:
    """Return a constant seed."""
    return {"kind": "const", "value": list(value)}


def account(path: str, of: str | None = None) -> Json:
    """Return a seed that is an account's address, or a field of an account of the type `of`."""
    return {"kind": "account", "path": path} | ({"account": of} if of else {})


def tokens_of(owner: Json, *, mint: Json, program: Json) -> Json:
    """Return the derivation of an associated token account."""
    return {"seeds": [owner, program, mint], "program": const(ASSOCIATED_TOKEN_PROGRAM)}


def next_allowlist() -> Json:
    """Return the derivation of a policy's next allowlist."""
    return {"seeds": [const(b"allowlist"), account("policy"), account("policy.next_allowlist_version", "Policy")]}


def preset(name: str) -> Json:
    """Return the derivation of a preset."""
    return {"seeds": [const(b"policy"), account("org"), const(f"pol_{name}".encode().ljust(16, b"\0"))]}


def derivation(instruction: Json, name: str) -> Json | None:
    """Return how clients derive an account of an instruction that Anchor's macros cannot describe, or None."""
    names = {one["name"] for one in instruction["accounts"]}
    given = ("mint", "token_program")
    mint, program = (account(one) if one in names else account(f"org.{one}", "Org") for one in given)
    match instruction["name"], name:
        case "initialize_org", "org":
            return {"seeds": [const(b"org"), account("creator"), {"kind": "arg", "path": "args.org_hash"}]}
        case "create_escrow", "escrow":
            return {"seeds": [const(b"escrow"), account("vault"), account("vault.escrow_counter", "Vault")]}
        case "grant_allowance", "allowance":
            return {"seeds": [const(b"allowance"), account("vault"), account("vault.allowance_counter", "Vault")]}
        case (("write_allowlist" | "close_allowlist"), "allowlist"):
            return next_allowlist()
        case _, "next_allowlist":
            return next_allowlist()
        case "create_escrow", "receiver_tokens":
            return tokens_of(account("receiver"), mint=mint, program=program)
        case _, "receiver_tokens":
            # The receiver's own account may be omitted.
            return tokens_of(account("escrow.receiver", "Escrow"), mint=mint, program=program)
        case _, "vault_tokens":
            return tokens_of(account("vault"), mint=mint, program=program)
        case _, "reserve_tokens":
            return tokens_of(account("org"), mint=mint, program=program)
    return preset(name.removeprefix("preset_")) if name.startswith("preset_") else None


def describe_account(instruction: Json, found: Json, address: str) -> Json:
    """Return an account of an instruction with its address, its derivation or its relations, if it has any."""
    if found.keys() & {"address", "pda", "relations"}:
        return found
    name, names = found["name"], {one["name"] for one in instruction["accounts"] if not one.get("optional")}
    if name in {"program", "instructions"}:
        return {**found, "address": address if name == "program" else INSTRUCTIONS_SYSVAR}
    if (pda := derivation(instruction, name)) is not None:
        return {**found, "pda": pda}
    sources = [one for one in RELATIONS.get(name, ()) if one in names and not _creates(instruction, one)]
    return {**found, "relations": sources[:1]} if sources else found


def _creates(instruction: Json, name: str) -> bool:
    """Return True if the instruction creates the account, which then stores nothing yet."""
    return instruction["name"] in {f"create_{name}", f"grant_{name}", "initialize_org", "create_wallet"} or (
        instruction["name"] == "approve_payment" and name == "approval"
    )


def describe_arguments(instruction: Json) -> Json:
    """Move the documentation of an instruction's arguments to them. Raise ValueError if one has none."""
    docs: list[str] = []
    described: dict[str, list[str]] = {}
    for line in instruction.get("docs", []):
        if found := ARGUMENT.fullmatch(line.strip()):
            described[found[1]] = [found[2]]
        elif described:
            described[next(reversed(described))].append(line.strip())
        else:
            docs.append(line)
    names = [one["name"] for one in instruction["args"]]
    if set(names) != described.keys():
        raise ValueError(f"{instruction['name']}: document each argument; {sorted(set(names) ^ described.keys())}")
    args = [{**one, "docs": described[one["name"]]} for one in instruction["args"]]
    return {**instruction, "docs": docs, "args": args}


def describe_event(type_: Json) -> Json:
    """Document the fields of an event that have a common meaning. Raise ValueError if one has no documentation."""
    fields = []
    for field in type_["type"]["fields"]:
        if not field.get("docs") and field["name"] not in FIELDS:
            raise ValueError(f"{type_['name']}: document the field {field['name']!r}")
        fields.append({"docs": [FIELDS.get(field["name"], "")], **field})
    return {**type_, "type": {**type_["type"], "fields": fields}}


def describe(idl: Json) -> Json:
    """Return the IDL with all documentation and derivations. Raise ValueError if something has no documentation."""
    events = {one["name"] for one in idl["events"]}
    instructions = [
        {**one, "accounts": [describe_account(one, found, idl["address"]) for found in one["accounts"]]}
        for one in map(describe_arguments, idl["instructions"])
    ]
    types = [describe_event(one) if one["name"] in events else one for one in idl["types"]]
    return {**idl, "instructions": instructions, "types": types}
