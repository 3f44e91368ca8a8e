"""Encodes the program's instructions and decodes its accounts, events, logs and return data.

This is the only module of the service that imports anchorpy. The coders are derived from `agent_vault.json`. Only
`AllowlistLayout` adds entries that the file cannot describe.

Values have plain types: `Pubkey` for addresses, `bytes` for byte arrays, `int`, `bool`, `list`, `dict` for structs, the
variant's name for enums, and `None` or the value for options.
"""

import json
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anchorpy import Idl
from anchorpy.coder.coder import Coder
from construct import ConstructError
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from idl.allowlist import AllowlistLayout
from idl.coders import AnchorpyCoder, BodyCoder, choose
from idl.layout import FixedLayout
from idl.legacy import to_legacy
from idl.types import Enum, Struct, TypeTable
from idl.values import EnumValues

IDL_PATH = Path(__file__).with_name("agent_vault.json")
EVENT_IX_TAG = bytes.fromhex("e445a52e51cb9a1d")
"""The first bytes of the instruction data when the program emits an event by calling itself (Anchor's event CPI)."""
DISCRIMINATOR_SIZE = 8

_BAD_VALUES = (ConstructError, struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError)


class CodecError(ValueError):
    """The values do not fit the IDL, or the IDL does not describe the bytes."""


@dataclass(frozen=True, slots=True)
class Event:
    """A decoded event: its name, such as `PaymentExecuted`, and its fields."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Account:
    """A decoded account: the name of its type, such as `Vault`, and its fields."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded instruction: its name, arguments and accounts. An omitted account is `None`."""

    name: str
    args: dict[str, Any]
    accounts: dict[str, Pubkey | None]


@dataclass(frozen=True, slots=True)
class _AccountSlot:
    """One account of an instruction: its name, and how the instruction uses it."""

    name: str
    signer: bool
    writable: bool
    optional: bool
    fixed: Pubkey | None


@dataclass(frozen=True, slots=True)
class _InstructionPlan:
    """The parts needed to assemble one instruction."""

    discriminator: bytes
    args: BodyCoder
    accounts: tuple[_AccountSlot, ...]
    names: frozenset[str]


class Codec:
    """Reads and writes the program's bytes for one program address."""

    def __init__(self, idl: Mapping[str, Any], program_id: Pubkey | None = None) -> None:
        """Build every coder of `idl`. `program_id` is used in place of the address in the IDL.

        Raises `CodecError` if a discriminator of the IDL differs from the one that anchorpy computes from the name.
        """
        self.idl = idl
        self.program_id = program_id or Pubkey.from_string(idl["address"])
        self.event_authority = Pubkey.find_program_address([b"__event_authority"], self.program_id)[0]
        self.errors: dict[int, str] = {error["code"]: error["name"] for error in idl.get("errors", [])}
        self._types = TypeTable(idl.get("types", []))
        with warnings.catch_warnings():
            # anchorpy's enums come from a library that uses a deprecated call of attrs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._anchorpy = Coder(Idl.from_json(json.dumps(to_legacy(idl, self._types))))
            self._enums = self._enum_values()
        self._instructions = {item["name"]: self._instruction_plan(item) for item in idl["instructions"]}
        self._instruction_names = {plan.discriminator: name for name, plan in self._instructions.items()}
        self._events = {bytes(e["discriminator"]): self._event_coder(e) for e in idl.get("events", [])}
        self._accounts = {bytes(a["discriminator"]): self._account_coder(a) for a in idl.get("accounts", [])}

    def instruction(self, name: str, args: Mapping[str, Any], accounts: Mapping[str, Pubkey | None]) -> Instruction:
        """Build the instruction `name`.

        Arguments and accounts have the IDL's names. `None` leaves out an optional account. The event authority, the
        program itself and accounts with a fixed address may be omitted. Raises `CodecError` for a missing or unknown
        name and for values that do not fit.
        """
        plan = self._plan(name)
        if not plan.names.issuperset(accounts):
            raise CodecError(f"{name} has no account {', '.join(sorted(set(accounts) - plan.names))}")
        metas = [self._meta(name, slot, accounts) for slot in plan.accounts]
        return Instruction(self.program_id, self.instruction_data(name, args), metas)

    def instruction_data(self, name: str, args: Mapping[str, Any]) -> bytes:
        """Encode the data of the instruction `name`. Raises `CodecError` for arguments that do not fit."""
        plan = self._plan(name)
        try:
            return plan.discriminator + plan.args.encode(args)
        except _BAD_VALUES as error:
            raise CodecError(f"arguments of {name}: {error}") from error

    def decode_instruction(self, data: bytes) -> tuple[str, dict[str, Any]] | None:
        """Return the name and arguments of an instruction, or `None` if it is not one of the program's.

        Raises `CodecError` if the arguments do not fit.
        """
        name = self._instruction_names.get(data[:DISCRIMINATOR_SIZE])
        if name is None:
            return None
        return name, _decoded(f"instruction {name}", self._instructions[name].args, data, DISCRIMINATOR_SIZE)

    def decode_call(self, data: bytes, keys: Sequence[Pubkey]) -> Call:
        """Decode an instruction of the program, given its data and the addresses of its accounts in order.

        Raises `CodecError` unless `instruction` would build exactly these bytes and accounts from the result. This
        refuses unknown instructions, surplus bytes, missing or surplus accounts, and a wrong address of a fixed
        account.
        """
        decoded = self.decode_instruction(data)
        if decoded is None:
            raise CodecError("the program has no such instruction")
        name, args = decoded
        slots = self._instructions[name].accounts
        if len(keys) != len(slots):
            raise CodecError(f"{name} has {len(slots)} accounts, not {len(keys)}")
        accounts: dict[str, Pubkey | None] = {}
        for slot, key in zip(slots, keys, strict=True):
            if slot.fixed not in (None, key):
                raise CodecError(f"{name}: {slot.name} must be {slot.fixed}")
            accounts[slot.name] = None if slot.optional and key == self.program_id else key
        if self.instruction_data(name, args) != data:
            raise CodecError(f"{name} has surplus bytes")
        return Call(name, args, accounts)

    def decode_account(self, data: bytes) -> Account:
        """Decode the account in `data`. Raises `CodecError` unless it is an account of the program and fits the IDL."""
        known = self._accounts.get(data[:DISCRIMINATOR_SIZE])
        if known is None:
            raise CodecError("the data is not an account of the program")
        name, coder = known
        return Account(name, _decoded(f"account {name}", coder, data, DISCRIMINATOR_SIZE))

    def decode_event(self, data: bytes) -> Event | None:
        """Return the event in the data of an inner instruction, or `None` if it holds no event of the IDL.

        Raises `CodecError` if the fields of a known event do not fit.
        """
        if not data.startswith(EVENT_IX_TAG):
            return None
        return self._event(data, len(EVENT_IX_TAG))

    def decode_log(self, data: bytes) -> Event | None:
        """Return the event in the bytes of a `Program data:` log line, or `None` for other data.

        Raises the errors of `decode_event`.
        """
        return self._event(data, 0)

    def decode_return(self, type_name: str, data: bytes) -> dict[str, Any]:
        """Decode the struct `type_name` from return data. Raises `CodecError` if the bytes do not fit."""
        return _decoded(type_name, self._type_coder(self._types.named_struct(type_name)), data, 0)

    def encode_event(self, event: Event) -> bytes:
        """Encode the data of the inner instruction that carries `event`. Raises `CodecError` for an unknown event."""
        for discriminator, (name, coder) in self._events.items():
            if name == event.name:
                return EVENT_IX_TAG + discriminator + coder.encode(event.data)
        raise CodecError(f"the program has no event {event.name}")

    def error_name(self, code: int) -> str | None:
        """Return the program's name for a custom error code, or `None` if the code is unknown."""
        return self.errors.get(code)

    def _plan(self, name: str) -> _InstructionPlan:
        try:
            return self._instructions[name]
        except KeyError:
            raise CodecError(f"the program has no instruction {name}") from None

    def _meta(self, name: str, slot: _AccountSlot, accounts: Mapping[str, Pubkey | None]) -> AccountMeta:
        address = accounts.get(slot.name, slot.fixed)
        if address is not None:
            return AccountMeta(address, slot.signer, slot.writable)
        if slot.optional and slot.name in accounts:
            # By Anchor's convention, the program's own address stands for an omitted account.
            return AccountMeta(self.program_id, is_signer=False, is_writable=False)
        raise CodecError(f"{name} needs the account {slot.name}")

    def _event(self, data: bytes, offset: int) -> Event | None:
        known = self._events.get(data[offset : offset + DISCRIMINATOR_SIZE])
        if known is None:
            return None
        name, coder = known
        return Event(name, _decoded(f"event {name}", coder, data, offset + DISCRIMINATOR_SIZE))

    def _instruction_plan(self, item: Mapping[str, Any]) -> _InstructionPlan:
        name = item["name"]
        discriminator = bytes(item["discriminator"])
        _same_discriminator(name, discriminator, self._anchorpy.instruction.sighashes.get(name))
        type_ = self._types.struct(name, item["args"])
        slots = tuple(self._slots(item["accounts"]))
        return _InstructionPlan(
            discriminator,
            choose(type_, lambda: self._argument_coder(name, type_)),
            slots,
            frozenset(slot.name for slot in slots),
        )

    def _slots(self, accounts: list[Mapping[str, Any]]) -> Iterator[_AccountSlot]:
        for account in accounts:
            if "accounts" in account:
                yield from self._slots(account["accounts"])
                continue
            yield _AccountSlot(
                account["name"],
                account.get("signer", False),
                account.get("writable", False),
                account.get("optional", False),
                self._fixed_address(account),
            )

    def _fixed_address(self, account: Mapping[str, Any]) -> Pubkey | None:
        match account["name"]:
            case "event_authority":
                return self.event_authority
            case "program":
                return self.program_id
        return Pubkey.from_string(account["address"]) if "address" in account else None

    def _argument_coder(self, name: str, type_: Struct) -> BodyCoder:
        coder = self._anchorpy.instruction
        return AnchorpyCoder(
            type_,
            self._enums,
            lambda values: bytes(coder.encode(name, values))[DISCRIMINATOR_SIZE:],
            coder.ix_layout[name].parse,
        )

    def _event_coder(self, item: Mapping[str, Any]) -> tuple[str, BodyCoder]:
        name = item["name"]
        coder = self._anchorpy.events
        computed = next((d for d, known in coder.discriminators.items() if known == name), None)
        _same_discriminator(name, bytes(item["discriminator"]), computed)
        layout = coder.layouts[name]
        type_ = self._types.named_struct(name)
        return name, choose(type_, lambda: AnchorpyCoder(type_, self._enums, layout.build, layout.parse))

    def _account_coder(self, item: Mapping[str, Any]) -> tuple[str, BodyCoder]:
        name = item["name"]
        _same_discriminator(
            name, bytes(item["discriminator"]), self._anchorpy.accounts.acc_name_to_discriminator.get(name)
        )
        # The program's accounts are zero-copy, so each has a layout with a fixed size.
        layout = AllowlistLayout if name == "Allowlist" else FixedLayout
        return name, layout(self._types.named_struct(name))

    def _type_coder(self, type_: Struct) -> BodyCoder:
        coder = self._anchorpy.types
        return choose(
            type_,
            lambda: AnchorpyCoder(
                type_,
                self._enums,
                lambda values: coder.encode(type_.name, values),
                lambda data: coder.decode(type_.name, data),
            ),
        )

    def _enum_values(self) -> EnumValues:
        enums = [self._types.named(item["name"]) for item in self.idl.get("types", [])]
        return {
            enum.name: [self._anchorpy.types.decode(enum.name, bytes([i])) for i in range(len(enum.variants))]
            for enum in enums
            if isinstance(enum, Enum)
        }


@cache
def load(program_id: Pubkey | None = None) -> Codec:
    """Return the codec of `agent_vault.json` for `program_id`, or for the address in the IDL if it is None."""
    return Codec(json.loads(IDL_PATH.read_text(encoding="utf-8")), program_id)


def _same_discriminator(name: str, stated: bytes, computed: bytes | None) -> None:
    if stated != computed:
        raise CodecError(f"the IDL's discriminator of {name} does not belong to this name")


def _decoded(what: str, coder: BodyCoder, data: bytes, offset: int) -> dict[str, Any]:
    try:
        return coder.decode(data, offset)
    except _BAD_VALUES as error:
        raise CodecError(f"{what}: {error}") from error
