"""Transactions with every instruction of the IDL, and every change of one argument or account of each."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token.state import TokenAccount, TokenAccountState
from solders.transaction import VersionedTransaction

from app.chain.addresses import TOKEN_PROGRAM
from app.chain.nonces import advance
from idl.codec import load
from idl.types import Array, ByteArray, Enum, IdlType, Option, Primitive, TypeTable, Vec

CODEC = load()
_TYPES = TypeTable(CODEC.idl["types"])
INSTRUCTIONS: Mapping[str, Any] = {item["name"]: item for item in CODEC.idl["instructions"]}
PAYER, NONCE, MINT = (Pubkey(bytes([number]) * 32) for number in (201, 202, 203))
BLOCKHASH = Hash(bytes([204]) * 32)
_BITS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64, "i64": 63}


@dataclass(frozen=True)
class Sample:
    """An instruction's name, arguments and accounts, with which a transaction of the signing key is made."""

    name: str
    args: Mapping[str, Any]
    accounts: Mapping[str, Pubkey | None]

    def step(self) -> Instruction:
        return CODEC.instruction(self.name, self.args, self.accounts)


def sample(name: str, signer: Pubkey) -> Sample:
    """Return an instruction with a value for every argument and optional account; `signer` signs as it demands."""
    item, chance = INSTRUCTIONS[name], random.Random(name)
    accounts: dict[str, Pubkey | None] = {}
    for account in item["accounts"]:
        own = Pubkey(chance.randbytes(32))
        if account.get("signer"):
            own = PAYER if account.get("writable") else own if signer in accounts.values() else signer
        known = {"mint": MINT, "token_program": TOKEN_PROGRAM}
        accounts[account["name"]] = known.get(account["name"], own)
    accounts = {one: address for one, address in accounts.items() if one not in _fixed(name)}
    return Sample(name, {one["name"]: _value(_TYPES.resolve(one["type"]), chance) for one in item["args"]}, accounts)


def _fixed(name: str) -> set[str]:
    known = {one["name"] for one in INSTRUCTIONS[name]["accounts"] if "address" in one}
    return known | {"event_authority", "program"}


def _value(kind: IdlType, chance: random.Random) -> Any:
    match kind:
        case Option(item):
            return _value(item, chance)
        case Vec(item):
            return [_value(item, chance) for _ in range(2)]
        case Array(item, length):
            return [_value(item, chance) for _ in range(length)]
        case ByteArray(length):
            return chance.randbytes(length)
        case Enum(_, variants):
            return chance.choice(variants)
        case Primitive("bool"):
            return chance.random() < 0.5
        case Primitive("pubkey"):
            return Pubkey(chance.randbytes(32))
        case Primitive(name):
            return chance.getrandbits(min(_BITS[name], 40))
        case _:
            return {name: _value(one, chance) for name, one in kind.fields}


def changed(one: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the sample with each field of each argument, and each account, changed in every way that its type has."""
    for argument in INSTRUCTIONS[one.name]["args"]:
        name = argument["name"]
        for path, value in _others(_TYPES.resolve(argument["type"]), one.args[name]):
            yield f"{name}{path}", replace(one, args={**one.args, name: value})
    optional = {account["name"] for account in INSTRUCTIONS[one.name]["accounts"] if account.get("optional")}
    for name in one.accounts:
        for address in (Pubkey.new_unique(), *([None] if name in optional else [])):
            yield f"{name} to {address}", replace(one, accounts={**one.accounts, name: address})


def _others(kind: IdlType, value: Any) -> Iterator[tuple[str, Any]]:
    match kind:
        case Option(item):
            yield " to none", None
            yield from _others(item, value)
        case Vec(item):
            yield " shorter", value[1:]
            yield " in another order", value[::-1]
            yield " longer", [*value, value[0]]
            yield from ((path, [other, *value[1:]]) for path, other in _others(item, value[0]))
        case ByteArray(length):
            yield from ((f" in byte {place}", _flipped(value, place)) for place in (0, length // 2, length - 1))
        case Enum(_, variants):
            yield from ((f" to {variant}", variant) for variant in variants if variant != value)
        case Primitive("bool"):
            yield "", not value
        case Primitive("pubkey"):
            yield from (("", Pubkey.new_unique()), (" to nobody", Pubkey.default()))
        case Primitive(name):
            limit = (1 << _BITS[name]) - 1
            yield from ((f" to {other}", other) for other in {value ^ 1, 0, limit, limit - 1, limit >> 1} - {value})
            if name == "i64":
                yield from ((f" to {other}", other) for other in (-1, -2, -(1 << 63), 253_402_300_800, 253_402_300_801))
        case Array():
            raise NotImplementedError
        case _:
            for field, item in kind.fields:
                yield from ((f".{field}{path}", {**value, field: one}) for path, one in _others(item, value[field]))


def _flipped(value: bytes, place: int) -> bytes:
    return bytes(byte ^ 1 if at == place else byte for at, byte in enumerate(value))


def transaction(signer: Pubkey, *steps: Instruction) -> bytes:
    """Return an unsigned legacy transaction on the nonce of `signer`."""
    message = Message.new_with_blockhash([advance(NONCE, signer), *steps], PAYER, BLOCKHASH)
    return bytes(VersionedTransaction.populate(message, [Signature.default()] * message.header.num_required_signatures))


def token_account(owner: Pubkey, mint: Pubkey = MINT) -> bytes:
    """Return the data of a token account."""
    state = TokenAccountState.Initialized
    return bytes(TokenAccount(mint, owner, 5, None, state, None, 0, None))


def lies(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield what may be claimed of an account: each kind of the program's accounts, token accounts, and nonsense."""
    chance = random.Random(seed)
    for item in CODEC.idl["accounts"]:
        yield item["name"], bytes(item["discriminator"]) + chance.randbytes(4_000)
        zeros = bytes(3_992)
        yield f"{item['name']} of zeros", bytes(item["discriminator"]) + zeros
        yield f"short {item['name']}", bytes(item["discriminator"])
    yield "token account", token_account(Pubkey(chance.randbytes(32)))
    yield "longer token account", token_account(Pubkey(chance.randbytes(32))) + bytes(40)
    yield "nothing", b""
    yield "nonsense", chance.randbytes(165)
