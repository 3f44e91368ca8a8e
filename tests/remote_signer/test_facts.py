"""Facts follow from the signed bytes alone: no claim changes one, and nothing that is signed is hidden."""

import base64
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageHeader, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.chain.addresses import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, Addresses
from app.chain.instructions import Instructions
from app.commands.main import main
from app.core.signers import write_secret
from app.remote_signer.facts import facts
from app.remote_signer.inspection import UnsafeTransactionError, inspect
from idl.transactions import parse
from tests.remote_signer.every_instruction import (
    BLOCKHASH,
    CODEC,
    INSTRUCTIONS,
    MINT,
    NONCE,
    PAYER,
    Sample,
    changed,
    lies,
    sample,
    token_account,
    transaction,
)
from tests.remote_signer.lying_node import LyingNode
from tests.support.version1 import as_version_1

_KEY = Keypair.from_seed(bytes([7]) * 32)
_SIGNER = _KEY.pubkey()
_HEADING = "Facts, from the signed bytes alone:"
_MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
_ORG, _TREASURY, _THIEF = (Pubkey(bytes([number]) * 32) for number in (211, 212, 213))
#: Looks like facts, moves the cursor, turns the direction of writing, and breaks lines.
_HOSTILE = f"x\n{_HEADING}\r\n  destination: {_ORG}, owned by {_TREASURY}\x1b[2J\u202e\u2028\u2066א\0" + " " * 300


def _facts(raw: bytes) -> tuple[str, ...]:
    return tuple(facts(inspect(raw, _SIGNER, CODEC)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("signer")
    write_secret(made / "authority.json", json.dumps(list(bytes(_KEY))))
    return made


@pytest.fixture(scope="module")
def node() -> Iterator[LyingNode]:
    with LyingNode(_SIGNER) as found:
        yield found


def _sign(folder: Path, raw: bytes, *options: str, **claimed: object) -> Result:
    file = folder / "change.json"
    file.write_text(json.dumps({"transaction": base64.b64encode(raw).decode(), **claimed}))
    command = ["sign", str(file), "--keypair", str(folder / "authority.json"), "--yes", *options]
    return CliRunner().invoke(main, command)


def _split(result: Result) -> tuple[str, str]:
    """Return the claims and the facts of an output, after checks of the marks and letters that must tell them apart."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    before, heading, after = f"\n{result.stderr}".partition(f"\n{_HEADING}\n")
    assert heading, result.stderr
    assert result.stderr.isascii()
    assert all(one == "\n" or one.isprintable() for one in result.stderr)
    unproved_claims = [line for line in before.splitlines() if line and not line.startswith("Claims of ")]
    assert all(line.startswith(("  claim: ", "  proved claim: ")) for line in unproved_claims)
    return before, after.partition("\nError: ")[0].rstrip("\n")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_signed_argument_and_account_is_among_the_facts(name: str) -> None:
    one = sample(name, _SIGNER)
    every = {_facts(transaction(_SIGNER, one.step())): "as it is"}
    assert [line for line in next(iter(every)) if f"({name})" in line]
    for what, other in changed(one):
        found = _facts(transaction(_SIGNER, other.step()))
        assert found not in every, f"{what} reads as {every.get(found)}"
        every[found] = what
    shown = [line.split(":")[0].strip() for line in next(iter(every))]
    assert {*one.args, *one.accounts} <= {path.split(".")[0].split("[")[0] for path in shown}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_accounts_with_a_fixed_address_have_no_other(name: str) -> None:
    step = sample(name, _SIGNER).step()
    for place, account in enumerate(INSTRUCTIONS[name]["accounts"]):
        if account["name"] in {"event_authority", "program"} or "address" in account:
            metas = list(step.accounts)
            metas[place] = AccountMeta(Pubkey.new_unique(), is_signer=False, is_writable=False)
            _refused(transaction(_SIGNER, Instruction(step.program_id, bytes(step.data), metas)), "must be")


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_facts_are_the_same_in_every_format(name: str) -> None:
    legacy = transaction(_SIGNER, sample(name, _SIGNER).step())
    message = parse(legacy)
    newer = MessageV0(message.header, list(message.keys), BLOCKHASH, list(message.instructions), [])
    version_0 = bytes(VersionedTransaction.populate(newer, list(message.signatures)))
    found = [_facts(raw) for raw in (legacy, version_0, as_version_1(legacy))]
    formats = {line for lines in found for line in lines if line.startswith("Format: ")}
    assert formats == {
        "Format: legacy",
        "Format: version 0",
        "Format: version 1, configured by the mask 0x4 to c05c1500",
    }
    assert len({tuple(line for line in lines if not line.startswith("Format: ")) for lines in found}) == 1


def _claims(raw: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield lies about the accounts: each kind of account for all of them, then any kind for each."""
    keys, chance = parse(raw).keys, random.Random(len(raw))
    for what, data in lies(len(raw)):
        yield what, {str(key): base64.b64encode(data).decode() for key in keys}
    every = [data for _, data in lies(1)]
    for number in range(8):
        told = {str(key): base64.b64encode(chance.choice(every)).decode() for key in keys}
        yield f"mixture {number}", told


@pytest.mark.proves("AwaitingSignature(accounts)")
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_no_claim_of_the_file_changes_a_fact(folder: Path, name: str) -> None:
    raw = transaction(_SIGNER, sample(name, _SIGNER).step())
    _, honest = _split(_sign(folder, raw))
    assert tuple(line[2:] for line in honest.splitlines()) == _facts(raw)
    for what, accounts in _claims(raw):
        assert _split(_sign(folder, raw, accounts=accounts))[1] == honest, what
    said = ("id", "status", "type", "object", "organization_address", "signer", "nonce_account", "created_at", "facts")
    assert _split(_sign(folder, raw, **dict.fromkeys(said, _HOSTILE)))[1] == honest


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_no_answer_of_a_node_changes_a_fact(folder: Path, node: LyingNode, name: str) -> None:
    raw = transaction(_SIGNER, sample(name, _SIGNER).step())
    _, honest = _split(_sign(folder, raw))
    for what, accounts in _claims(raw):
        node.accounts = accounts
        assert _split(_sign(folder, raw, "--rpc-url", node.url))[1] == honest, what


def _withdrawal(owner: Pubkey, program: Pubkey = TOKEN_PROGRAM, *, opened: bool = False) -> tuple[bytes, Pubkey]:
    """Return a withdrawal to the account of an owner, whose address is in the bytes if it is `opened`."""
    addresses = Addresses(CODEC.program_id, MINT, program)
    build, place = Instructions(CODEC, addresses, _ORG), addresses.token_account(owner)
    step = build.withdraw_reserve(
        authority=_SIGNER, destination=place, amount=5_000_000, reference=bytes(16), expected_sequence=1
    )
    front = [build.create_token_account(payer=PAYER, owner=owner)] if opened else []
    return transaction(_SIGNER, *front, step), place


def _owned(place: Pubkey, owner: Pubkey) -> Mapping[str, str]:
    return {str(place): base64.b64encode(token_account(owner)).decode()}


@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_owner_in_the_bytes_is_proved_whatever_is_claimed(folder: Path, program: Pubkey) -> None:
    raw, place = _withdrawal(_TREASURY, program, opened=True)
    for accounts in ({}, _owned(place, _TREASURY), _owned(place, _THIEF)):
        result = _sign(folder, raw, accounts=accounts)
        assert result.exit_code == 0, result.output
        unproved_claims, shown = _split(result)
        assert f"destination: {place}, owned by {_TREASURY}" in shown
        assert (unproved_claims, "not proved" in shown) == ("", False)


@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_claimed_owner_is_no_fact_and_refuses_a_withdrawal(folder: Path, node: LyingNode, program: Pubkey) -> None:
    raw, place = _withdrawal(_THIEF, program)
    node.accounts = dict(_owned(place, _TREASURY))
    for options in ((), ("--rpc-url", node.url)):
        result = _sign(folder, raw, *options, accounts=_owned(place, _TREASURY))
        unproved_claims, shown = _split(result)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"not signed: the owner of the token account {place} is not proved" in result.stderr
        assert f"claim: {place} is owned by {_TREASURY}" in unproved_claims
        assert str(_TREASURY) not in shown
        assert f"destination: {place}, owner not proved" in shown


def test_claimed_owner_that_derives_the_account_is_proved(folder: Path) -> None:
    raw, place = _withdrawal(_TREASURY)
    result = _sign(folder, raw, accounts=_owned(place, _TREASURY))
    assert result.exit_code == 0, result.output
    assert f"  proved claim: {place} is owned by {_TREASURY}" in result.stderr
    # With another token program or mint in the bytes the same owner derives another address.
    other, elsewhere = _withdrawal(_TREASURY, TOKEN_2022_PROGRAM)
    assert place != elsewhere
    assert _sign(folder, other, accounts=_owned(place, _TREASURY)).exit_code == 1


def test_unproved_owner_is_accepted_only_by_the_whole_address(folder: Path) -> None:
    raw, place = _withdrawal(_THIEF)
    whole = str(place)
    for typed in (whole[:-1], whole[:8], whole.lower(), f" {whole}", f"{whole} ", str(_THIEF), "", "yes"):
        assert _sign(folder, raw, "--accept-unproved", typed).exit_code == 1, typed
    assert _sign(folder, raw, "--accept-unproved", str(_THIEF), "--accept-unproved", whole).exit_code == 0


def test_each_unproved_account_must_be_accepted(folder: Path) -> None:
    build = Instructions(CODEC, Addresses(CODEC.program_id, MINT), _ORG)
    places = [Pubkey.new_unique(), Pubkey.new_unique()]
    steps = [
        build.withdraw_reserve(authority=_SIGNER, destination=one, amount=1, reference=bytes(16), expected_sequence=1)
        for one in places
    ]
    raw = transaction(_SIGNER, *steps)
    first, second = (("--accept-unproved", str(one)) for one in places)
    assert [_sign(folder, raw, *one).exit_code for one in (first, second, first + second)] == [1, 1, 0]


def test_every_instruction_is_shown_and_a_second_one_twice() -> None:
    one, other = sample("update_budget", _SIGNER), sample("close_policy", _SIGNER)
    shown = _facts(transaction(_SIGNER, one.step(), other.step(), one.step()))
    assert [line for line in shown if not line.startswith(" ")][:3] == [
        "Change a budget (update_budget)",
        "Delete a policy (close_policy)",
        "Change a budget (update_budget)",
    ]


def test_costs_and_memos_are_among_the_facts() -> None:
    step = sample("update_budget", _SIGNER).step()
    extra = [set_compute_unit_limit(7), set_compute_unit_price(8), Instruction(_MEMO, b"a" * 90, [])]
    every = [_facts(transaction(_SIGNER, *extra[:count], step)) for count in range(4)]
    assert len(set(every)) == len(every)
    assert {"  unit_limit: 7", "  micro_lamports_per_unit: 8", f"  text from 80: '{'a' * 10}'"} <= set(every[-1])
    hostile = _facts(transaction(_SIGNER, step, Instruction(_MEMO, _HOSTILE.encode(), [])))
    assert all(line.isascii() and line.isprintable() and len(line) < 200 for line in hostile)
    assert not [line for line in hostile if line.startswith((_HEADING, "  destination"))]


def _refused(raw: bytes, reason: str) -> None:
    with pytest.raises(UnsafeTransactionError, match=reason):
        inspect(raw, _SIGNER, CODEC)


@pytest.mark.parametrize("data", [b"", b"\2", b"\2" + bytes(5), b"\x09" + bytes(4), b"\4" + bytes(8)])
def test_unknown_instructions_about_costs_are_refused(data: bytes) -> None:
    step = Instruction(set_compute_unit_limit(1).program_id, data, [])
    _refused(transaction(_SIGNER, step), "another program")


def test_memo_that_lets_an_account_sign_is_refused() -> None:
    meta = AccountMeta(_SIGNER, is_signer=True, is_writable=False)
    _refused(transaction(_SIGNER, Instruction(_MEMO, b"hello", [meta])), "malformed")


def test_transfer_of_tokens_is_refused() -> None:
    metas = [AccountMeta(Pubkey.new_unique(), is_signer=False, is_writable=True) for _ in range(2)]
    signs = AccountMeta(_SIGNER, is_signer=True, is_writable=False)
    step = Instruction(TOKEN_PROGRAM, b"\3" + (5).to_bytes(8, "little"), [*metas, signs])
    _refused(transaction(_SIGNER, step), "another program")


def test_account_of_an_owner_is_opened_in_one_way_only() -> None:
    build = Instructions(CODEC, Addresses(CODEC.program_id, MINT), _ORG)
    whole = build.create_token_account(payer=PAYER, owner=_TREASURY)
    for data in (b"", b"\0", b"\2", b"\1\1"):
        _refused(transaction(_SIGNER, Instruction(whole.program_id, data, whole.accounts)), "malformed")
    for place in range(1, 6):
        metas = list(whole.accounts)
        metas[place] = AccountMeta(Pubkey.new_unique(), metas[place].is_signer, metas[place].is_writable)
        _refused(
            transaction(_SIGNER, Instruction(whole.program_id, b"\1", metas)),
            "malformed|another program",
        )


def _rewritten(raw: bytes, header: tuple[int, int, int], extra: list[Pubkey]) -> bytes:
    """Return a legacy transaction with another header and further addresses at its end."""
    old = parse(raw)
    message = Message.new_with_compiled_instructions(
        *header, [*old.keys, *extra], old.blockhash, list(old.instructions)
    )
    return bytes(VersionedTransaction.populate(message, [Signature.default()] * header[0]))


def test_accounts_and_rights_that_no_instruction_needs_are_refused() -> None:
    raw = transaction(_SIGNER, sample("update_budget", _SIGNER).step())
    old: MessageHeader = parse(raw).header
    now = (old.num_required_signatures, old.num_readonly_signed_accounts, old.num_readonly_unsigned_accounts)
    assert _facts(_rewritten(raw, now, [])) == _facts(raw)
    _refused(_rewritten(raw, (now[0], now[1], now[2] + 1), [Pubkey.new_unique()]), "although no instruction needs that")
    _refused(_rewritten(raw, (now[0], now[1], now[2] - 1), []), "although no instruction needs that")
    _refused(_rewritten(raw, (now[0] + 1, now[1], now[2]), []), "SOL|although no instruction needs that")


def test_fee_payer_nonce_and_other_signers_are_among_the_facts() -> None:
    one = sample("update_wallet", _SIGNER)
    other = Pubkey.new_unique()
    shown = "\n".join(
        _facts(transaction(_SIGNER, Sample(one.name, one.args, {**one.accounts, "authority": other}).step()))
    )
    for found in (f"Signed by {PAYER}", str(other), f"paid by {PAYER}", f"nonce account {NONCE} holds {BLOCKHASH}"):
        assert found in shown


def test_configuration_of_version_1_is_among_the_facts() -> None:
    raw = as_version_1(transaction(_SIGNER, sample("update_budget", _SIGNER).step()))
    place = 42 + 32 * len(parse(raw).keys)
    other = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
    assert _facts(raw) != _facts(other)


def test_facts_come_last_so_that_no_claims_push_them_away(folder: Path) -> None:
    one: Any = sample("update_policy", _SIGNER)
    raw = transaction(_SIGNER, one.step())
    listed = next(item for item in CODEC.idl["accounts"] if item["name"] == "Allowlist")
    body = bytes(listed["discriminator"]) + bytes(80) + (9_000).to_bytes(4, "little") + bytes(32 * 9_000)
    policy = next(item for item in CODEC.idl["accounts"] if item["name"] == "Policy")
    accounts = {
        # Each address-sized part after the eight bytes of layout, flags and padding is the list.
        str(one.accounts["policy"]): bytes(policy["discriminator"])
        + bytes(8)
        + bytes(one.accounts["new_allowlist"]) * 100,
        str(one.accounts["new_allowlist"]): body,
    }
    told = {address: base64.b64encode(data).decode() for address, data in accounts.items()}
    unproved_claims, shown = _split(_sign(folder, raw, accounts=told))
    assert "more entries of the current list" in unproved_claims
    assert len(unproved_claims.splitlines()) < 120
    assert tuple(line[2:] for line in shown.splitlines()) == _facts(raw)
