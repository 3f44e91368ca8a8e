"""Checks that the codec reads and writes the golden bytes of every instruction, account and event of the IDL."""

import json
from typing import Any

import pytest
from solders.pubkey import Pubkey

from idl.codec import EVENT_IX_TAG, Codec, CodecError, Event, load
from idl.layout import FixedLayout
from idl.types import Array, ByteArray, IdlType, Option, Primitive, Struct, TypeTable, Vec
from tests.idl.golden import GOLDEN, IDL, KINDS, constant, fields_of

GOLDEN_VALUES: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
IDL_VALUES: dict[str, Any] = json.loads(IDL.read_text())
TYPES = TypeTable(IDL_VALUES["types"])


def plain(type_: IdlType, value: Any) -> Any:
    """Return a golden value in the form that the codec uses."""
    match type_:
        case Primitive("pubkey"):
            return Pubkey(bytes.fromhex(value))
        case ByteArray():
            return bytes.fromhex(value)
        case Array(item) | Vec(item):
            return [plain(item, one) for one in value]
        case Option(item):
            return None if value is None else plain(item, value)
        case Struct(_, fields):
            return {name: plain(kind, value[name]) for name, kind in fields}
    return value


def sample(kind: str, name: str) -> tuple[dict[str, Any], bytes]:
    """Return the golden values of something in the IDL, and their bytes."""
    item = next(one for one in IDL_VALUES[kind] if one["name"] == name)
    golden = GOLDEN_VALUES[kind][name]
    struct = TYPES.struct(name, fields_of(IDL_VALUES, kind, item))
    values: dict[str, Any] = plain(struct, golden["values"])
    return values, bytes.fromhex(golden["bytes"])


def names(kind: str) -> list[str]:
    """Return the names of all instructions, accounts or events."""
    return [one["name"] for one in IDL_VALUES[kind]]


@pytest.fixture(scope="module", name="codec")
def _codec() -> Codec:
    return load()


@pytest.mark.parametrize("kind", KINDS)
def test_everything_in_the_idl_has_golden_bytes(kind: str) -> None:
    assert set(names(kind)) == set(GOLDEN_VALUES[kind]), "run python -m tests.idl.golden and review the difference"


@pytest.mark.parametrize("name", names("instructions"))
def test_instruction_has_its_golden_bytes(codec: Codec, name: str) -> None:
    values, raw = sample("instructions", name)
    assert codec.instruction_data(name, values) == raw
    assert codec.decode_instruction(raw) == (name, values)


@pytest.mark.parametrize("name", names("events"))
def test_event_has_its_golden_bytes(codec: Codec, name: str) -> None:
    values, raw = sample("events", name)
    assert codec.decode_event(EVENT_IX_TAG + raw) == Event(name, values)
    assert codec.decode_log(raw) == Event(name, values)
    assert codec.encode_event(Event(name, values)) == EVENT_IX_TAG + raw


@pytest.mark.parametrize("name", names("accounts"))
def test_account_has_its_golden_bytes(codec: Codec, name: str) -> None:
    values, raw = sample("accounts", name)
    if name == "Allowlist":
        raw += (2).to_bytes(4, "little") + b"\x01" * 32 + b"\x02" * 32
        values["entries"] = [b"\x01" * 32, b"\x02" * 32]
    account = codec.decode_account(raw)
    assert account.name == name
    assert account.data == values


@pytest.mark.parametrize("name", names("instructions"))
def test_anchorpy_writes_the_same_instruction(codec: Codec, name: str) -> None:
    values, raw = sample("instructions", name)
    struct = TYPES.struct(
        name,
        fields_of(
            IDL_VALUES,
            "instructions",
            {"args": next(one["args"] for one in IDL_VALUES["instructions"] if one["name"] == name)},
        ),
    )
    reference = codec._argument_coder(name, struct)
    assert reference.encode(values) == raw[8:]
    assert reference.decode(raw, 8) == values


@pytest.mark.parametrize("name", names("events"))
def test_anchorpy_reads_the_same_event(codec: Codec, name: str) -> None:
    values, raw = sample("events", name)
    decoded = codec._anchorpy.events.parse(raw)
    assert decoded.name == name
    for field, expected in values.items():
        found = getattr(decoded.data, field)
        if isinstance(expected, bytes):
            assert bytes(found) == expected
        elif isinstance(expected, int | Pubkey):
            assert found == expected


@pytest.mark.parametrize("name", names("instructions"))
def test_accounts_are_in_the_idls_order_with_its_flags(codec: Codec, name: str) -> None:
    values, _ = sample("instructions", name)
    item = next(one for one in IDL_VALUES["instructions"] if one["name"] == name)
    given = {
        one["name"]: Pubkey.new_unique()
        for one in item["accounts"]
        if one["name"] not in {"event_authority", "program"}
    }
    expected = {**given, "event_authority": codec.event_authority, "program": codec.program_id}
    metas = codec.instruction(name, values, given).accounts
    assert [(meta.pubkey, meta.is_signer, meta.is_writable) for meta in metas] == [
        (expected[one["name"]], one.get("signer", False), one.get("writable", False)) for one in item["accounts"]
    ]


def test_optional_account_left_out_is_the_program_itself(codec: Codec) -> None:
    values, _ = sample("instructions", "update_wallet")
    given = {name: Pubkey.new_unique() for name in ("operator", "org", "vault")}
    left_out = {"authority": None, "policy": None, "new_policy": None}
    metas = codec.instruction("update_wallet", values, {**given, **left_out}).accounts
    assert [(meta.pubkey, meta.is_signer, meta.is_writable) for meta in metas if meta.pubkey == codec.program_id][
        :3
    ] == [(codec.program_id, False, False)] * 3


def test_missing_and_unknown_accounts_are_refused(codec: Codec) -> None:
    values, _ = sample("instructions", "update_wallet")
    given: dict[str, Pubkey | None] = {name: Pubkey.new_unique() for name in ("operator", "org", "vault")}
    with pytest.raises(CodecError, match="needs the account authority"):
        codec.instruction("update_wallet", values, given)
    with pytest.raises(CodecError, match="has no account"):
        codec.instruction(
            "update_wallet", values, {**given, "authority": None, "policy": None, "new_policy": None, "other": None}
        )
    with pytest.raises(CodecError, match="needs the account vault"):
        codec.instruction(
            "update_wallet", values, {**given, "authority": None, "vault": None, "policy": None, "new_policy": None}
        )


@pytest.mark.parametrize(
    "args",
    [
        {"amount": 1},
        {"amount": -1, "reference": bytes(16)},
        {"amount": 2**64, "reference": bytes(16)},
        {"amount": "1", "reference": bytes(16)},
        {"amount": 1, "reference": bytes(15)},
        {"amount": 1, "reference": bytes(17)},
        {"amount": 1, "reference": bytes(16), "more": 1},
    ],
)
def test_arguments_that_do_not_fit_are_refused(codec: Codec, args: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        codec.instruction_data("execute_payment", args)


@pytest.mark.parametrize(
    "args",
    [
        {"amount": 2**64, "reference": bytes(16)},
        {"amount": -1, "reference": bytes(16)},
        {"amount": None, "reference": bytes(15)},
        {"amount": None},
        {"amount": None, "reference": bytes(16), "more": 1},
    ],
)
def test_arguments_with_options_that_do_not_fit_are_refused(codec: Codec, args: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        codec.instruction_data("withdraw", args)


def test_unknown_names_and_variants_are_refused(codec: Codec) -> None:
    with pytest.raises(CodecError):
        codec.instruction_data("steal", {})
    with pytest.raises(CodecError):
        codec.instruction_data("freeze_wallet", {"action": "Melt"})
    with pytest.raises(CodecError):
        codec.encode_event(Event("Stolen", {}))


def test_foreign_bytes_are_not_events_or_accounts(codec: Codec) -> None:
    _, raw = sample("events", "WalletClosed")
    assert codec.decode_event(raw) is None
    assert codec.decode_event(EVENT_IX_TAG + bytes(64)) is None
    assert codec.decode_event(b"") is None
    assert codec.decode_log(b"short") is None
    assert codec.decode_instruction(bytes(8)) is None
    with pytest.raises(CodecError):
        codec.decode_account(bytes(200))


def test_truncated_bytes_are_refused(codec: Codec) -> None:
    _, event = sample("events", "WalletClosed")
    _, created = sample("events", "PolicyCreated")
    _, vault = sample("accounts", "Vault")
    _, allowlist = sample("accounts", "Allowlist")
    for data in (event, created):
        with pytest.raises(CodecError):
            codec.decode_event(EVENT_IX_TAG + data[:-1])
    for data in (vault[:-1], allowlist, allowlist + b"\x01\0\0\0" + bytes(31)):
        with pytest.raises(CodecError):
            codec.decode_account(data)


def test_fields_appended_by_a_later_program_are_ignored(codec: Codec) -> None:
    values, raw = sample("events", "WalletClosed")
    assert codec.decode_event(EVENT_IX_TAG + raw + bytes(8)) == Event("WalletClosed", values)


def test_the_payment_path_is_precompiled(codec: Codec) -> None:
    assert isinstance(codec._instructions["execute_payment"].args, FixedLayout)
    assert isinstance(codec._events[raw_discriminator("PaymentExecuted")][1], FixedLayout)


def raw_discriminator(event: str) -> bytes:
    """Return the discriminator of an event in the IDL."""
    return bytes(next(one["discriminator"] for one in IDL_VALUES["events"] if one["name"] == event))


def test_another_program_address_changes_only_addresses() -> None:
    address = Pubkey.new_unique()
    codec = load(address)
    assert codec.program_id == address
    assert codec.event_authority == Pubkey.find_program_address([b"__event_authority"], address)[0]
    assert codec.errors == load().errors


def test_idl_with_a_discriminator_of_another_name_is_refused() -> None:
    idl = json.loads(IDL.read_text())
    idl["events"][0]["discriminator"][0] ^= 1
    with pytest.raises(CodecError, match="discriminator"):
        Codec(idl)


def test_return_data_of_check_payment_is_read(codec: Codec) -> None:
    verdict = bytes([13, 2, 1, 0]) + (10).to_bytes(8, "little") * 3 + b"\0"
    stopped = b"\1" + (6012).to_bytes(4, "little")
    raw = (
        b"\0\1" + (99).to_bytes(8, "little") + stopped + (7).to_bytes(8, "little") + (1).to_bytes(4, "little") + verdict
    )
    assert codec.decode_return("PaymentCheck", raw) == {
        "passed": False,
        "retry_at": 99,
        "error": 6012,
        "balance": 7,
        "rules": [
            {
                "rule": 13,
                "level": 2,
                "set": True,
                "passed": False,
                "limit": 10,
                "attempted": 10,
                "headroom": 10,
                "retry_at": None,
            }
        ],
    }


def test_errors_and_constants_come_from_the_idl(codec: Codec) -> None:
    assert codec.error_name(6000) == "OrgPaused"
    assert codec.error_name(6009) == "CoSignRequired"
    assert codec.error_name(1) is None
    assert constant("VAULT") == b"vault"
    assert constant("MAX_ENTRIES") == 1000
