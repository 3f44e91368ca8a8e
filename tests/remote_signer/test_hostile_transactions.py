"""`agent-vault sign` refuses whatever the service never asks an authority to sign."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from app.chain.addresses import Addresses
from app.chain.instructions import Instructions
from app.chain.nonces import advance
from app.chain.rules import Rules
from app.commands.main import main
from app.core.signers import create_key, write_secret
from idl.codec import load

_MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
_PAYER, _NONCE, _ORG = (Keypair().pubkey() for _ in range(3))
_CODEC = load()
_BUILD = Instructions(_CODEC, Addresses(_CODEC.program_id, Pubkey.new_unique()), _ORG)


class Stage:
    """An authority's key, and files for it to sign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = create_key(folder / "authority.json")
        self.address = self.key.pubkey()

    @property
    def change(self) -> Instruction:
        return _BUILD.update_policy(
            authority=self.address, policy=Pubkey.new_unique(), expected_version=1, rules=Rules(max_per_tx=5_000_000)
        )

    def raw(self, *steps: Instruction, payer: Pubkey = _PAYER, first: Instruction | None = None) -> bytes:
        every = [first or advance(_NONCE, self.address), set_compute_unit_limit(1_000_000), *steps]
        return _unsigned(Message.new_with_blockhash(every, payer, Hash.new_unique()))

    def sign(self, raw: bytes, *options: str, **more: object) -> Result:
        file = self.folder / "change.json"
        file.write_text(json.dumps({"transaction": base64.b64encode(raw).decode(), **more}))
        return self.run(file, *options)

    def run(self, file: Path, *options: str) -> Result:
        return CliRunner().invoke(
            main, ["sign", str(file), "--keypair", str(self.folder / "authority.json"), *(options or ("--yes",))]
        )


def _unsigned(message: Message | MessageV0) -> bytes:
    empty = [Signature.default()] * message.header.num_required_signatures
    return bytes(VersionedTransaction.populate(message, empty))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def _signed(result: Result) -> VersionedTransaction:
    return VersionedTransaction.from_bytes(base64.b64decode(json.loads(result.stdout)["transaction"]))


def test_what_the_service_makes_is_signed(stage: Stage) -> None:
    raw = stage.raw(stage.change, Instruction(_MEMO, b"hello", []))
    result = stage.sign(raw)
    assert result.exit_code == 0, result.output
    made = _signed(result)
    keys = made.message.account_keys
    assert bytes(made)[1 + 64 * len(made.signatures) :] == raw[1 + 64 * raw[0] :]
    assert made.signatures[0] == Signature.default()
    mine = made.signatures[keys.index(stage.address)]
    assert mine.verify(stage.address, raw[1 + 64 * raw[0] :])
    for shown in (f"org: {_ORG}", "max_per_tx: 5.00 USDC", "text from 0: 'hello'", str(_PAYER), str(_NONCE)):
        assert shown in result.stderr


def _refused(stage: Stage, raw: bytes, reason: str) -> None:
    result = stage.sign(raw)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert reason in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_transfer_of_sol_is_refused(stage: Stage) -> None:
    # The authority's lamports would make it writable; the fee payer's are refused by the program's name.
    theft = transfer(TransferParams(from_pubkey=_PAYER, to_pubkey=Pubkey.new_unique(), lamports=1))
    _refused(stage, stage.raw(stage.change, theft), "another program")


def test_signing_key_that_could_lose_its_sol_is_refused(stage: Stage) -> None:
    theft = transfer(TransferParams(from_pubkey=stage.address, to_pubkey=Pubkey.new_unique(), lamports=1))
    _refused(stage, stage.raw(stage.change, theft), "could spend the signing key's SOL")
    costly = _BUILD.create_policy(
        payer=stage.address, authority=stage.address, key=bytes(16), rules=Rules(), expected_sequence=0
    )
    _refused(stage, stage.raw(costly), "could spend the signing key's SOL")


def test_fee_payer_that_is_the_signing_key_is_refused(stage: Stage) -> None:
    _refused(stage, stage.raw(stage.change, payer=stage.address), "would pay the transaction's fee")


def test_instruction_of_another_program_is_refused(stage: Stage) -> None:
    other = Pubkey.new_unique()
    meta = AccountMeta(stage.address, is_signer=True, is_writable=False)
    _refused(stage, stage.raw(stage.change, Instruction(other, b"", [meta])), f"another program, {other}")


def test_second_advance_of_a_nonce_is_refused(stage: Stage) -> None:
    _refused(stage, stage.raw(stage.change, advance(Pubkey.new_unique(), stage.address)), "another program")


def test_transaction_without_a_nonce_is_refused(stage: Stage) -> None:
    message = Message.new_with_blockhash([stage.change], _PAYER, Hash.new_unique())
    _refused(stage, _unsigned(message), "does not advance a durable nonce")
    late = Message.new_with_blockhash([stage.change, advance(_NONCE, stage.address)], _PAYER, Hash.new_unique())
    _refused(stage, _unsigned(late), "does not advance a durable nonce")
    empty = Message.new_with_blockhash([], _PAYER, Hash.new_unique())
    _refused(stage, _unsigned(empty), "needs no signature")


def test_nonce_of_another_authority_is_refused(stage: Stage) -> None:
    other = Pubkey.new_unique()
    _refused(stage, stage.raw(stage.change, first=advance(_NONCE, other)), f"nonce is {other}")


def test_advance_with_missing_accounts_is_refused(stage: Stage) -> None:
    whole = advance(_NONCE, stage.address)
    short = Instruction(whole.program_id, bytes(whole.data), whole.accounts[:2])
    _refused(stage, stage.raw(stage.change, first=short), "malformed")


def test_transaction_for_another_key_is_refused(stage: Stage) -> None:
    other = Pubkey.new_unique()
    change = _BUILD.update_org(signer=other, paused=False)
    _refused(stage, stage.raw(change, first=advance(_NONCE, other)), "needs no signature")


def test_address_lookup_tables_are_refused(stage: Stage) -> None:
    steps = [advance(_NONCE, stage.address), stage.change]
    table = AddressLookupTableAccount(Pubkey.new_unique(), [_ORG])
    looking = MessageV0.try_compile(_PAYER, steps, [table], Hash.new_unique())
    assert looking.address_table_lookups
    _refused(stage, _unsigned(looking), "lookup tables")
    plain = MessageV0.try_compile(_PAYER, steps, [], Hash.new_unique())
    assert "Format: version 0" in stage.sign(_unsigned(plain)).stderr


def _with(
    data: Callable[[bytes], bytes], metas: Callable[[Sequence[AccountMeta]], Sequence[AccountMeta]]
) -> Callable[[Instruction], Instruction]:
    return lambda step: Instruction(step.program_id, data(bytes(step.data)), list(metas(step.accounts)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_with(lambda data: b"\xff" * 8 + data[8:], lambda metas: metas), "no such instruction"),
        (_with(lambda data: data[:5], lambda metas: metas), "no such instruction"),
        (_with(lambda data: data[:12], lambda metas: metas), "does not know"),
        (_with(lambda data: data + b"\0", lambda metas: metas), "surplus"),
        (_with(lambda data: data, lambda metas: metas[:-1]), "accounts"),
        (_with(lambda data: data, lambda metas: [*metas, metas[0]]), "accounts"),
        (_with(lambda data: data, lambda metas: [*metas[:-1], metas[1]]), "program must be"),
    ],
)
def test_unknown_or_spoilt_instruction_is_refused(
    stage: Stage, spoil: Callable[[Instruction], Instruction], reason: str
) -> None:
    _refused(stage, stage.raw(spoil(stage.change)), reason)


def test_same_bytes_of_another_program_are_refused(stage: Stage) -> None:
    step, other = stage.change, Pubkey.new_unique()
    _refused(stage, stage.raw(Instruction(other, bytes(step.data), list(step.accounts))), "another program")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "not JSON",
        '{"transaction": 7}',
        '{"transaction": "%%"}',
        '{"accounts": {}}',
        '{"transaction": "AAAA", "accounts": 3}',
        '{"transaction": "AAAA", "accounts": {"x": "AAAA"}}',
        "[" * 100_000,
        " " * (1 << 20) + "{}",
    ],
)
def test_file_that_is_no_answer_is_refused(stage: Stage, text: str) -> None:
    file = stage.folder / "bad.json"
    file.write_text(text)
    result = stage.run(file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output


def test_bytes_that_are_no_transaction_are_refused(stage: Stage) -> None:
    raw = stage.raw(stage.change)
    for spoilt, reason in ((b"", "not a transaction"), (raw[:-1], "not a transaction"), (raw + b"\0", "surplus")):
        _refused(stage, spoilt, reason)


def test_nothing_in_the_file_controls_the_terminal(stage: Stage) -> None:
    memo = b"\x1b[2Jfake\r\nline"
    result = stage.sign(stage.raw(stage.change, Instruction(_MEMO, memo, [])))
    assert result.exit_code == 0
    assert "\x1b" not in result.stderr
    assert r"text from 0: '\x1b[2Jfake\r\nline'" in result.stderr


def test_nothing_is_signed_without_a_yes(stage: Stage) -> None:
    out = stage.folder / "signed.json"
    result = stage.sign(stage.raw(stage.change), "--out", str(out))
    assert (result.exit_code, out.exists()) == (1, False)


def test_signed_file_is_new_and_private(stage: Stage) -> None:
    out = stage.folder / "signed.json"
    assert stage.sign(stage.raw(stage.change), "--yes", "--out", str(out)).exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    again = stage.sign(stage.raw(stage.change), "--yes", "--out", str(out))
    assert (again.exit_code, "exists" in again.stderr) == (1, True)


def test_key_file_that_others_can_read_is_refused(stage: Stage) -> None:
    (stage.folder / "authority.json").chmod(0o644)
    result = stage.sign(stage.raw(stage.change))
    assert (result.exit_code, "mode 600" in result.stderr) == (1, True)
    write_secret(stage.folder / "authority.json", "[1, 2]")
    assert "not a key file" in stage.sign(stage.raw(stage.change)).stderr


def test_programs_address_that_is_none_is_refused(stage: Stage) -> None:
    result = stage.sign(stage.raw(stage.change), "--yes", "--program-id", "x")
    assert (result.exit_code, "--program-id" in result.stderr) == (1, True)
    other = stage.sign(stage.raw(stage.change), "--yes", "--program-id", str(Pubkey.new_unique()))
    assert (other.exit_code, "another program" in other.stderr) == (1, True)


@pytest.mark.parametrize("lied", [True, False])
def test_entries_are_shown_only_if_they_are_those_signed_for(stage: Stage, lied: bool) -> None:
    policy, mine, theirs = (Pubkey.new_unique() for _ in range(3))
    write = _BUILD.write_allowlist(
        payer=_PAYER,
        writer=stage.address,
        policy=policy,
        version=1,
        offset=0,
        entries=[bytes(theirs if lied else mine)],
        seal=True,
    )
    change = _BUILD.update_policy(
        authority=stage.address,
        policy=policy,
        expected_version=1,
        rules=Rules(restricted=True),
        new_allowlist=Pubkey.new_unique(),
        entries=[bytes(mine)],
    )
    shown = stage.sign(stage.raw(write, change)).output
    assert ("the list's entries: not in these bytes" in shown) == lied
    assert (str(mine) in shown) == (not lied)


def test_permission_of_allowances_is_shown(stage: Stage) -> None:
    change = _BUILD.update_policy(
        authority=stage.address, policy=Pubkey.new_unique(), expected_version=1, rules=Rules(allow_allowances=True)
    )
    assert "allow_allowances: yes" in stage.sign(stage.raw(change)).output
